"""Versions of nvJPEG, nvImageCodec and the driver that DALI uses: those that are loaded, not those installed."""

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

# Each case runs in a fork of a process that has imported DALI, which has not loaded nvJPEG yet.
PROGRAM = """
import ctypes, os, shutil, sys
from penstock.loaders.dali.dali_versions import nvjpeg_version
from penstock.pipelines.sample.dali_graph import import_dali

import_dali()
path = os.environ["LD_LIBRARY_PATH"]
for action, library in zip(*[iter(sys.argv[1:])] * 2):
    if action == "put on the path":
        shutil.copy(library, path)
    if os.fork() == 0:
        if action == "load":
            ctypes.CDLL(library)
        print(nvjpeg_version(), flush=True)
        os._exit(0)
    os.wait()
"""


def test_the_reported_nvjpeg_is_the_one_that_the_linker_gives_to_dali(tmp_path: Path) -> None:
    """One with another name is ignored (other wheels bundle such files), as is one that does not report a version."""
    path = tmp_path / "path"
    path.mkdir()
    other = build_nvjpeg(tmp_path / "other", (13, 0, 4), soname="libnvjpeg-02b6d700.so.13")
    loaded = build_nvjpeg(tmp_path / "loaded", (13, 0, 4))
    older = build_nvjpeg(tmp_path / "older", (13, 1, 0))
    silent = build_nvjpeg(tmp_path / "silent", (13, 1, 0), status=1)
    installed = str(tuple(int(part) for part in version("nvidia-nvjpeg").split(".")[:3]))
    cases = [
        ("nothing", "", installed),
        ("load", other, installed),
        ("load", loaded, "(13, 0, 4)"),
        ("put on the path", older, "(13, 1, 0)"),
        ("put on the path", silent, "None"),
    ]
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *(str(word) for case in cases for word in case[:2])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "LD_LIBRARY_PATH": str(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.splitlines() == [expected for *_, expected in cases]


@pytest.mark.parametrize(
    ("nvjpeg", "right", "words"),
    [
        ((12, 4, 0), False, "nvJPEG 12.4.0"),
        ((13, 1, 9), False, "nvJPEG 13.1.9"),  # from CUDA 13.2
        ((13, 2, 0), True, "nvJPEG 13.2.0"),  # from CUDA 13.3
        ((14, 0, 0), True, "nvJPEG 14.0.0"),
        (None, True, "no nvJPEG"),
    ],
)
def test_edges_are_correct_since_13_2(
    monkeypatch: pytest.MonkeyPatch, nvjpeg: tuple[int, ...] | None, right: bool, words: str
) -> None:
    monkeypatch.setattr(dali_versions, "nvjpeg_version", lambda: nvjpeg)
    assert has_right_edges() is right
    assert versions().startswith("DALI 2")
    assert versions().endswith(f" and {words}")


def test_the_drivers_version_comes_from_the_kernel_or_is_its_cuda_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dali_versions, "_DRIVER_FILE", tmp_path / "version")
    monkeypatch.setattr(dali_versions, "driver_cuda", lambda: None)
    assert driver_version() == "?"
    monkeypatch.setattr(dali_versions, "driver_cuda", lambda: (13, 0))
    assert driver_version() == "for CUDA 13.0"
    (tmp_path / "version").write_text("580.65.06\n")
    assert driver_version() == "580.65.06"
