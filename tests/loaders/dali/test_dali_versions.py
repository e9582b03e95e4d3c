"""Which nvJPEG, nvImageCodec and driver DALI uses: those that are loaded, not those that are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from old_nvjpeg import build_nvjpeg

from penstock.loaders.dali import dali_versions
from penstock.loaders.dali.dali_versions import driver_version, has_right_edges, versions

ASK = "from penstock.loaders.dali.dali_versions import nvjpeg_version as ask; print(ask())"


def told(first: str = "", **environment: str) -> str:
    """What a new process takes for the version of DALI's nvJPEG after it ran `first`."""
    run = subprocess.run(
        [sys.executable, "-c", f"{first}\n{ASK}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.strip()


def installed() -> str:
    return str(tuple(int(part) for part in version("nvidia-nvjpeg").split(".")[:3]))


def test_it_is_the_nvjpeg_of_the_wheel() -> None:
    assert told() == installed()


def test_an_older_toolkit_on_the_librarys_path_is_noticed(tmp_path: Path) -> None:
    build_nvjpeg(tmp_path, (13, 1, 0))
    assert told(LD_LIBRARY_PATH=str(tmp_path)) == "(13, 1, 0)"


def test_one_that_is_loaded_already_is_dalis_too(tmp_path: Path) -> None:
    library = build_nvjpeg(tmp_path, (13, 0, 4))
    assert told(f"import ctypes; ctypes.CDLL({str(library)!r})") == "(13, 0, 4)"


def test_another_packages_own_copy_is_not_dalis(tmp_path: Path) -> None:
    """As wheels bundle it: under a name of its own, which the linker does not give to DALI."""
    library = build_nvjpeg(tmp_path, (13, 0, 4), soname="libnvjpeg-02b6d700.so.13")
    assert told(f"import ctypes; ctypes.CDLL({str(library)!r})") == installed()


def test_one_that_does_not_tell_is_none(tmp_path: Path) -> None:
    """nvImageCodec does not use it either; DALI decodes on the CPU then."""
    build_nvjpeg(tmp_path, (13, 1, 0), status=1)
    assert told(LD_LIBRARY_PATH=str(tmp_path)) == "None"


@pytest.mark.parametrize(
    ("nvjpeg", "right", "words"),
    [
        ((12, 4, 0), False, "nvJPEG 12.4.0"),
        ((13, 1, 9), False, "nvJPEG 13.1.9"),  # of CUDA 13.2
        ((13, 2, 0), True, "nvJPEG 13.2.0"),  # of CUDA 13.3
        ((14, 0, 0), True, "nvJPEG 14.0.0"),
        (None, True, "no nvJPEG"),
    ],
)
def test_edges_are_right_from_13_2_on(
    monkeypatch: pytest.MonkeyPatch, nvjpeg: tuple[int, ...] | None, right: bool, words: str
) -> None:
    monkeypatch.setattr(dali_versions, "nvjpeg_version", lambda: nvjpeg)
    assert has_right_edges() is right
    assert versions().startswith("DALI 2")
    assert versions().endswith(f" and {words}")


def test_the_drivers_version_is_the_kernels_word_or_its_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(dali_versions, "_DRIVER_FILE", tmp_path / "version")
    monkeypatch.setattr(dali_versions, "driver_cuda", lambda: None)
    assert driver_version() == "?"
    monkeypatch.setattr(dali_versions, "driver_cuda", lambda: (13, 0))
    assert driver_version() == "for CUDA 13.0"
    (tmp_path / "version").write_text("580.65.06\n")
    assert driver_version() == "580.65.06"
