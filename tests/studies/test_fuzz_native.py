"""A short corpus under AddressSanitizer and UBSan, with both instruction sets; fuzz_native.py makes long runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import fuzz_native
import native_tests
import pytest


@pytest.mark.slow
def test_a_short_corpus_causes_no_fault(tmp_path: Path) -> None:
    """If a compiler lacks sanitizers, this fails and is not skipped, because gcc includes them."""
    native_tests.native()  # skips without a C compiler
    try:
        program = fuzz_native.build(tmp_path / "fuzz")
    except subprocess.CalledProcessError as error:
        pytest.fail(f"{error.cmd[0]} cannot build {fuzz_native.HARNESS.name} with {fuzz_native.SANITIZERS[0]}")
    done = fuzz_native.run(program, 4000, 1000, 1)
    assert done.returncode == 0, done.stderr
    assert "of 4000 mutated" in done.stdout
    assert not done.stdout.startswith("0 of")
