"""Building, finding and omitting the native library."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import native_tests
import pytest

from penstock.pipelines.native import build as native_build
from penstock.pipelines.native import library as native_library


def test_library_is_loaded_and_of_this_version(native: ctypes.CDLL) -> None:
    assert native.pn_abi() == native_library._ABI


def test_a_file_that_cannot_be_loaded_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no library")
    assert native_library.load(tmp_path / "text.so") is None
    assert native_library.load(tmp_path / "missing.so") is None


@pytest.mark.usefixtures("native")
def test_library_of_another_version_is_not_called(tmp_path: Path) -> None:
    source = tmp_path / "other.c"
    for text, name in (("int pn_abi(void) { return -1; }", "abi.so"), ("int x;", "none.so")):
        source.write_text(text)
        command = [*native_build.compiler(), "-shared", "-fPIC", str(source), "-o", str(tmp_path / name)]
        subprocess.run(command, check=True)
        assert native_library.load(tmp_path / name) is None


@pytest.mark.usefixtures("native")
def test_instructions_are_used_only_after_a_check_of_the_processor() -> None:
    """Every name in a `target` attribute must be checked, except those that AVX2 implies."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(native_build.SOURCES.glob("*.[ch]")))
    used = {name for names in re.findall(r'target\("([^"]*)"\)', text) for name in names.split(",")}
    asked = set(re.findall(r'__builtin_cpu_supports\("([^"]*)"\)', text))
    assert used >= {"avx2", "bmi", "bmi2", "pclmul"}
    assert used - {"sse4.1"} == asked


@pytest.mark.skipif(shutil.which("clang") is None, reason="without clang")
def test_clang_has_no_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "clang")
    assert native_library.load(native_build.build(tmp_path / "lib.so", ["-Werror"])) is not None


@pytest.mark.parametrize("command", ["/bin/false", "no-such-compiler"])
def test_a_missing_compiler_is_reported_in_one_line(command: str) -> None:
    before = native_build.LIBRARY.exists() and native_build.LIBRARY.stat()
    run = subprocess.run(
        [sys.executable, native_build.__file__], env={"CC": command}, capture_output=True, text=True, check=False
    )
    (line,) = run.stderr.splitlines()
    assert (run.returncode, run.stdout) == (0, "")
    assert line.startswith(native_build.WITHOUT)
    assert command in line
    assert (native_build.LIBRARY.exists() and native_build.LIBRARY.stat()) == before


@pytest.mark.usefixtures("native")
def test_the_compilers_messages_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_build, "SOURCES", tmp_path)
    (tmp_path / "broken.c").write_text("int x = ;\n")
    with pytest.raises(native_build.BuildError, match=r"(?s)failed with exit code 1.*broken\.c:1"):
        native_build.build(tmp_path / "lib.so")
    assert [path.name for path in tmp_path.iterdir()] == ["broken.c"]


@pytest.mark.usefixtures("native")
def test_a_warning_fails_the_tests_but_not_a_users_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (native_build, native_tests):
        monkeypatch.setattr(module, "SOURCES", tmp_path)
    (tmp_path / "careless.c").write_text("int f(int unused) { return 0; }\n")
    native_build.build(tmp_path / "lib.so")
    with pytest.raises(native_build.BuildError, match=r"careless\.c:1.*unused"):
        native_tests.native.__wrapped__()


def test_library_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native_library.SWITCH, "0")
    native_library.native_library.cache_clear()
    assert native_library.native_library() is None
    native_library.native_library.cache_clear()
