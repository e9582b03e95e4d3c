"""Which versions the matrix installs, and that a machine without an interpreter passes, with a line that says so."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import version_matrix as module
from version_matrix import ENVIRONMENTS, SELECTION, Environment, declared_requirements, requirements

DECLARED = declared_requirements((module.ROOT / "pyproject.toml").read_text("utf-8"))


def test_the_oldest_are_the_bounds_that_are_declared_and_the_newest_their_ranges() -> None:
    oldest = requirements(ENVIRONMENTS["oldest"], DECLARED)
    assert {"torch==2.7", "numpy==1.26", "h5py==3.10", "PyTurboJPEG==1.8.2"} <= set(oldest)
    newest = requirements(Environment(python="3.12", turbojpeg="turbojpeg3"), DECLARED)
    assert {"torch>=2.7", "PyTurboJPEG>=2"} <= set(newest)
    assert not any(line.startswith("PyTurboJPEG>=1") for line in newest)
    simd = requirements(ENVIRONMENTS["simd"], DECLARED)
    assert ("pillow-simd" in simd, any(line.startswith("pillow>") for line in simd)) == (True, False)


def test_a_missing_interpreter_is_said_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "interpreter", lambda version: None)
    monkeypatch.setattr("sys.argv", ["version_matrix.py", "oldest"])
    assert module.main() == 0
    assert capsys.readouterr().out == "matrix: oldest: left out, there is no Python 3.10 on this machine\n"
    monkeypatch.setattr(module, "interpreter", lambda version: "python")
    monkeypatch.setattr(module, "has_libjpeg_turbo_3", lambda: False)
    monkeypatch.setattr("sys.argv", ["version_matrix.py", "newest-3.11"])
    assert module.main() == 0
    assert capsys.readouterr().out.endswith("left out, there is no libjpeg-turbo 3 on this machine\n")


def test_one_failure_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "run", lambda name, *_, lenient: name != "simd")
    monkeypatch.setattr("sys.argv", ["version_matrix.py"])
    assert module.main() == 1
    monkeypatch.setattr("sys.argv", ["version_matrix.py", "oldest"])
    assert module.main() == 0


def test_what_cannot_be_installed_is_a_failure_unless_it_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, timeout_s: float | None) -> Path:
        raise (
            subprocess.CalledProcessError(1, "pip")
            if timeout_s is None
            else subprocess.TimeoutExpired("pip", timeout_s)
        )

    monkeypatch.setattr(module, "installed", fail)
    monkeypatch.setattr(module, "interpreter", lambda version: "python")
    assert module.run("oldest", module.ENVIRONMENTS["oldest"], {}, ()) is False
    assert module.run("oldest", module.ENVIRONMENTS["oldest"], {}, (), lenient=True) is None


def test_what_it_runs_is_there() -> None:
    assert [place for place in SELECTION if not (module.ROOT / place).exists()] == []
    assert module.interpreter("2.0") is None
