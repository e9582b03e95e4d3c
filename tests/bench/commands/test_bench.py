"""`penstock bench` with data that it cannot measure, or aborted: one line, an exit code, the measurements so far."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from broken_scans import KINDS, make_undecodable
from command_line import penstock_here
from forked_commands import Commands
from photo_folder import write_folder
from processes import eventually

from penstock.bench.probe.search.candidate import BenchData
from penstock.bench.record.settings import BenchSettings
from penstock.bench.run import benchmark as module
from penstock.bench.run.benchmark import run_benchmark
from penstock.bench.run.time_budget import TimeBudget

QUICK = ("--device", "cpu", "--model", "none", "--batch-size", "8", "--size", "32", "--workers", "1")


def test_an_empty_folder_is_one_line(tmp_path: Path) -> None:
    run = penstock_here("bench", tmp_path, *QUICK)
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (3, "", 1)
    assert run.stderr.startswith("LoaderError[E-NODATA]")


def test_too_small_budget_is_refused_at_once(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not search first, which took ten seconds on a busy machine."""
    monkeypatch.setattr(module, "search_settings", lambda *_: pytest.fail("a search was started"))
    run = penstock_here("bench", photos, *QUICK, "--budget", 1)
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1] == (
        "penstock: the budget of 1 s was over before the loader could be measured: pass a longer --budget"
    )
    settings = BenchSettings(batch_size=8, size=32, model=None, budget=100.0)
    with pytest.raises(ValueError, match="longer --budget"):
        run_benchmark(BenchData(photos, settings), "photos", settings, TimeBudget(100.0, used=99.0))


def test_broken_image_is_replaced_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path, 40)
    broken = folder / "class1" / "0031.jpg"
    broken.write_bytes(make_undecodable(broken.read_bytes(), KINDS[2]))
    short = ("--backend", "torch", "--workers", 0, "--thorough", "--rounds", 1, "--seconds", 0.1, "--no-apply")
    run = penstock_here("bench", folder, *QUICK, *short, "--max-bad", 0.5)
    assert run.returncode == 0
    assert "Samples in " in run.stdout
    assert "replaced=0" not in run.stdout
    run = penstock_here("bench", folder, *QUICK, *short)
    assert run.returncode == 3
    errors = [line for line in run.stderr.splitlines() if line.startswith("LoaderError")]
    assert len(errors) == 1
    assert errors[0].startswith("LoaderError[E-MAXBAD] sample=")
    assert "class1/0031.jpg" in errors[0]


def test_an_aborted_run_has_printed_its_measurements(photos: Path, commands: Commands) -> None:
    with commands.running("bench", photos, *QUICK) as running:
        assert eventually(lambda: "images/s" in running.errors, within_s=60), running.errors
        code, output = running.end(signal.SIGINT, group=True)
        assert running.leaves_nothing(), running.left_behind()
    rates = [line for line in output.splitlines() if "images/s" in line]
    assert rates[0].startswith("search  torch of the files")
    assert (code, output.splitlines()[-1]) == (130, "penstock: stopped by SIGINT")
    assert "Traceback" not in output
