"""The fuzz program of the native decoder builds and runs; the sanitizers are for the long runs."""

from __future__ import annotations

from pathlib import Path

import fuzz_native
import native_tests


def test_a_few_inputs_are_survived(tmp_path: Path) -> None:
    native_tests.native()  # skips where there is no C compiler
    plain = tuple(flag for flag in fuzz_native.SANITIZERS if "fsanitize" not in flag and "fno-sanitize" not in flag)
    done = fuzz_native.run(fuzz_native.build(tmp_path / "fuzz", plain), 2000, 2000, 3)
    assert done.returncode == 0, done.stderr
    assert "of 2000 mutated" in done.stdout
    assert not done.stdout.startswith("0 of")
