"""The GPU hour runs nothing in vain: not what is done or failed, nor what lacks a package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from gpu_hour import Step, main, run_steps, steps


def ran(codes: dict[str, int | None], wanted: Sequence[Step], state: Path, **options: bool) -> list[str]:
    """Names of the steps that are run; each ends with its code."""
    names = []

    def run(command: Sequence[str], seconds: float) -> int | None:
        names.append(command[0])
        return codes[command[0]]

    run_steps(wanted, state, 1000.0, run=run, say=lambda text: None, **options)
    return names


def test_what_failed_waits_for_retry_and_what_is_done_needs_no_record(tmp_path: Path) -> None:
    wanted = [Step(name, (name,), record=tmp_path / "carried-away.json") for name in ("good", "bad", "late")]
    codes = {"good": 0, "bad": 1, "late": None}
    assert ran(codes, wanted, tmp_path / "state") == ["good", "bad", "late"]
    assert ran(codes, wanted, tmp_path / "state") == ["late"]
    assert ran(codes, wanted, tmp_path / "state", retry=True) == ["bad", "late"]


def test_a_missing_package_skips_its_steps(tmp_path: Path) -> None:
    needing = Step("needing", ("needing",), needs=("nowhere.at_all", "json"))
    assert ran({"needing": 0}, [needing], tmp_path / "state") == []
    [outcome] = run_steps([needing], tmp_path / "state", 1000.0, say=lambda text: None).values()
    assert outcome == "skipped: nowhere.at_all is not installed"
    needs = {step.name: step.needs for step in steps("data", "cache", "demo", tmp_path, ())}
    assert needs["resnet50-dali-cache"] == ("nvidia.dali", "h5py")
    assert needs["resnet50-torch"] == ()


def test_records_have_windows_long_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = []

    def run(command: Sequence[str], seconds: float) -> int:
        commands.append(list(command))
        return 0

    folders = ["--data", "d", "--cache", "c", "--demo", "e", "--results", str(tmp_path), "--state", str(tmp_path / "s")]
    assert main([*folders, "--", "--compile", "default"], run=run) == 0
    records = [command for command in commands if "bench" in command]
    assert records
    for command in records:
        assert float(command[command.index("--seconds") + 1]) >= 10
        assert command[command.index("--compile") + 1] == "default"
