"""The script of a GPU hour: order, budget, crashes, resuming and the table, without a GPU."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gpu_hour
import pytest
from bench_documents import document


class Machine:
    """Runs nothing: each step takes `takes` seconds and ends as `endings` says, with 0 by default."""

    def __init__(self, takes: float = 10.0, **endings: int | None) -> None:
        self.now, self._takes, self._endings = 0.0, takes, endings
        self.ran: list[str] = []
        self.said: list[str] = []

    def run(self, command: Sequence[str], seconds: float) -> int | None:
        name = next(
            step.name for step in gpu_hour.steps("photos", "c.h5", "demo", self.results, []) if step.command == command
        )
        self.ran.append(name)
        self.now += self._takes
        ending = self._endings.get(name.replace("-", "_"), 0)
        if ending == 0 and "--json" in command:
            Path(command[-1]).write_text(json.dumps(document()))
        return ending

    def hour(self, folder: Path, budget: float = 3600.0) -> dict[str, str]:
        self.results = folder
        wanted = gpu_hour.steps("photos", "c.h5", "demo", folder, [])
        control: dict[str, Any] = {"run": self.run, "clock": lambda: self.now, "say": self.said.append}
        return gpu_hour.run_steps(wanted, folder / "state" / "s.json", budget, **control)


ORDER = [
    *("regions", "selftest", "demo", "parity", "tests", "resnet50-torch", "resnet18-torch", "resnet50-dali-cache"),
    *("resnet18-dali-cache", "resnet50-hdf5", "resnet18-hdf5", "resnet50-dali", "resnet18-dali"),
]


def test_steps_run_in_the_order_of_their_worth(tmp_path: Path) -> None:
    machine = Machine()
    assert machine.hour(tmp_path) == dict.fromkeys(ORDER, "done")
    assert machine.ran == ORDER
    assert len(list(tmp_path.glob("gpu-*.json"))) == 8


def test_a_peer_is_measured_last_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_hour, "find_spec", lambda name: object())
    machine = Machine()
    assert list(machine.hour(tmp_path)) == [*ORDER, "turboloader"]
    assert (tmp_path / "gpu-turboloader.json").exists()


def test_one_failure_loses_one_record_and_is_tried_again(tmp_path: Path) -> None:
    first = Machine(regions=-signal.SIGSEGV, resnet50_torch=5, resnet18_dali=None).hour(tmp_path)
    assert first.pop("regions").startswith("killed by SIGSEGV: the GPU decoder of DALI crashes here")
    assert first.pop("resnet50-torch") == "failed with 5"
    assert first.pop("resnet18-dali") == "ended: its time was up"
    assert set(first.values()) == {"done"}
    machine = Machine()
    again = machine.hour(tmp_path)
    assert machine.ran == ["regions", "resnet50-torch", "resnet18-dali"]
    assert set(again.values()) == {"done", "done before"}


def test_it_stops_when_its_time_is_up_and_goes_on_later(tmp_path: Path) -> None:
    machine = Machine(takes=100.0)
    outcome = machine.hour(tmp_path, budget=800.0)
    assert machine.ran == ORDER[:7]  # 700 s, and the next takes 150
    assert outcome["resnet50-dali-cache"] == "left out: it takes 150 s, and 100 s are left"
    rest = Machine()
    rest.hour(tmp_path)
    assert rest.ran == ORDER[7:]
    next(tmp_path.glob("gpu-resnet18-hdf5.json")).unlink()  # a record that is gone is made again
    third = Machine()
    third.hour(tmp_path)
    assert third.ran == ["resnet18-hdf5"]


def test_the_table_comes_last_and_the_exit_code_says_whether_all_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--data", "photos", "--cache", "c.h5", "--demo", "demo", "--results", str(tmp_path)]
    options += ["--state", str(tmp_path / "state.json"), "--budget", "3600"]
    for machine, code in ((Machine(tests=1), 1), (Machine(), 0)):
        machine.results = tmp_path
        assert gpu_hour.main(options, run=machine.run, clock=lambda: 0.0, say=print) == code
        lines = capsys.readouterr().out.splitlines()
        assert sum(line.startswith("| gpu-resnet") for line in lines) == 8
        assert lines[-1].startswith("| gpu-resnet18-dali |")


def test_options_of_the_benchmark_reach_each_record() -> None:
    wanted = gpu_hour.steps("photos", "c.h5", "demo", Path("r"), ["--device", "cuda", "--amp", "bf16"])
    benches = [step.command for step in wanted if step.record]
    assert all(command[5:][-7:-3] == ("--device", "cuda", "--amp", "bf16") for command in benches)
    assert ["--cache" in command for command in benches] == [False, False, True, True, True, True, False, False]
    assert {command[command.index("--backend") + 1] for command in benches} == {"torch", "hdf5", "dali"}


def test_a_process_that_takes_too_long_is_ended() -> None:
    assert gpu_hour.run_process([sys.executable, "-c", "raise SystemExit(3)"], 60) == 3
    assert gpu_hour.run_process(["sleep", "1000"], 0.2) is None
    stubborn = "trap '' TERM; sleep 1000 & wait; wait"
    pytest.MonkeyPatch().setattr(gpu_hour, "_LEAVE_S", 0.2)
    assert gpu_hour.run_process(["sh", "-c", stubborn], 0.2) is None
