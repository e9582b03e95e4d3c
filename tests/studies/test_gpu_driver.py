"""The first minutes on a GPU, by a simulated clock: which results exist when, and what a bad step costs."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any

import gpu_driver
import pytest
from fat_binaries import find_codes
from gpu_driver import Place, Step, await_folder, find, main, run_process, run_steps, steps
from gpu_notes import Notes
from processes import eventually

PLACE = Place(Path("/results"), "photos", "demo", "gpu.h5", "cuda")
ALL = [step.name for step in steps(PLACE)]


class Machine:
    """A machine on which steps take their expected time, unless set otherwise."""

    def __init__(self, **seconds: float) -> None:
        self.now, self.seconds, self.limits = 100.0, seconds, dict[str, float]()
        self.done_at: dict[str, float] = {}

    def clock(self) -> float:
        return self.now

    def run(self, step: Step, limit: float) -> int | None:
        self.limits[step.name] = limit
        takes = self.seconds.get(step.name, step.expected_s)
        self.now += min(takes, limit)
        self.done_at[step.name] = self.now - 100
        return 0 if takes <= limit else None

    def serve(self, results: Path, budget: float = 540, **control: Any) -> dict[str, str]:
        return run_steps(steps(PLACE), results, budget, run=self.run, clock=self.clock, **control)


def test_kernels_and_rates_are_known_after_four_minutes_in_any_case(tmp_path: Path) -> None:
    expected = Machine()
    expected.serve(tmp_path)
    assert expected.done_at["kernels"] <= 40
    assert expected.done_at["rates"] <= 120
    slow = Machine(**dict.fromkeys(ALL, 10_000.0))
    slow.serve(tmp_path)
    assert slow.done_at["kernels"] < slow.done_at["rates"] <= 240


def test_all_steps_but_the_last_fit_into_the_usual_budget(tmp_path: Path) -> None:
    outcome = Machine().serve(tmp_path)
    done = [name for name in ALL if outcome[name].startswith("done")]
    assert done == ALL[: ALL.index("bench-resnet50-hdf5") + 1]
    assert outcome["memcheck"] == "skipped: 1 s left"


def test_only_the_step_that_hangs_is_ended_at_its_limit(tmp_path: Path) -> None:
    machine = Machine(kernels=10_000)
    outcome = machine.serve(tmp_path)
    assert outcome["kernels"] == "failed: time limit reached after 75 s"
    assert outcome["rates"] == "done after 80 s"
    assert outcome["bench-resnet18-torch"] == "done after 52 s"
    assert outcome["bench-resnet50-hdf5"] == "skipped: 8 s left"  # it would have no results


@pytest.mark.parametrize(
    ("package", "lost"),
    [
        ("nvidia.dali", ["dali", "dali-rates", "dali-tests"]),
        ("torchvision", ["nvjpeg"]),
        ("pytest_timeout", ["tests", "dali-tests"]),
        ("simplejpeg", [name for name in ALL if name not in ("facts", "kernels", "memcheck")]),
    ],
)
def test_a_missing_package_skips_only_its_steps(package: str, lost: list[str], tmp_path: Path) -> None:
    outcome = Machine().serve(tmp_path, 10_000, has=lambda name: name != package)
    assert [name for name in ALL if outcome[name] == f"skipped: no {package} here"] == lost
    assert all(outcome[name].startswith("done") for name in set(ALL) - set(lost))


def test_summary_and_archive_exist_after_each_step(tmp_path: Path) -> None:
    seen = []

    def run(step: Step, limit: float) -> int:
        if (tmp_path / "summary.json").exists():
            with tarfile.open(tmp_path / "records.tar.gz") as archive:
                seen.append((list(json.loads((tmp_path / "summary.json").read_text())), sorted(archive.getnames())))
        (tmp_path / f"{step.name}.json").write_text("{}")
        return {"two": 3, "three": -11}.get(step.name, 0)

    wanted = [Step(name, (), 5, 5) for name in ("one", "two", "three", "four")]
    outcome = run_steps(wanted, tmp_path, 100, run=run, clock=lambda: 0.0)
    assert seen[0] == (["one"], ["one.json", "summary.json"])
    assert seen[2] == (["one", "two", "three"], ["one.json", "summary.json", "three.json", "two.json"])
    endings = ["done", "failed with 3", "failed: killed by SIGSEGV", "done"]
    assert list(outcome.values()) == [f"{ending} after 0 s" for ending in endings]


def test_a_process_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    child = f"import os, time; os.fork(); open({str(tmp_path)!r} + f'/{{os.getpid()}}', 'w'); time.sleep(1000)"
    assert run_process(Step("a", (sys.executable, "-c", child), 9, 9), 3.0) is None
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 10)
    assert run_process(Step("b", (sys.executable, "-c", "raise SystemExit(4)"), 9, 9), 60.0) == 4


def test_only_the_requested_steps_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine()
    given = ["--results", str(tmp_path / "r"), "--work", str(tmp_path), "--only"]
    control: dict[str, Any] = {"run": machine.run, "clock": machine.clock, "has": lambda name: True}
    assert main([*given, "train,kernels"], **control) == 0
    assert list(machine.limits) == ["kernels", "train"]
    with pytest.raises(SystemExit):
        main([*given, "kernel"], **control)
    assert "no step kernel; there are facts, kernels" in capsys.readouterr().err
    assert main([*given, "train"], **{**control, "run": lambda step, limit: 1}) == 1


def test_a_missing_program_fails_only_its_step(tmp_path: Path) -> None:
    wanted = [Step("gone", (str(tmp_path / "gone"),), 5, 5), Step("here", (sys.executable, "-c", ""), 60, 5)]
    outcome = run_steps(wanted, tmp_path, 100)
    assert outcome["gone"].startswith("failed: [Errno 2]")
    assert outcome["here"].startswith("done")


def test_modules_and_programs_are_found_without_an_import(tmp_path: Path) -> None:
    paths = [str(tmp_path / "unpacked")]
    assert not find("nvidia.dali", paths)
    (tmp_path / "unpacked" / "nvidia" / "dali").mkdir(parents=True)
    (tmp_path / "unpacked" / "nvidia" / "dali" / "__init__.py").write_text("raise ImportError")
    assert [find(name, paths) for name in ("nvidia.dali", "nvidia.other", "other", "sh")] == [True, False, False, True]


def test_a_folder_being_unpacked_is_awaited(tmp_path: Path) -> None:
    folder, part = tmp_path / "dali", tmp_path / "dali.part"
    await_folder(folder)  # nothing unpacks it
    part.mkdir()
    threading.Timer(0.5, part.rename, [folder]).start()
    await_folder(folder)
    assert folder.is_dir()
    part.mkdir()
    folder.rmdir()
    await_folder(folder, 0.3)  # the process that unpacked it is gone
    assert part.is_dir()


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="it would start")
def test_without_a_gpu_nothing_starts(tmp_path: Path) -> None:
    start, results = Path(gpu_driver.__file__).with_name("start.sh"), tmp_path / "results"
    ran = subprocess.run(["bash", str(start), str(results), "60"], capture_output=True, text=True, check=False)
    assert (ran.returncode, "no NVIDIA GPU here" in ran.stderr, results.exists()) == (1, True, False)


def test_findings_are_written_immediately(tmp_path: Path) -> None:
    notes = Notes(str(tmp_path / "a.json"))
    for number in range(3):
        notes.note(f"finding {number}", {"value": number})
        assert len(json.loads((tmp_path / "a.json").read_text())) == number + 1


def test_device_code_is_found_by_architecture() -> None:
    """A library with two fat binaries, as nvcc lays them out, between other bytes."""

    def entry(kind: int, arch: int, code: bytes) -> bytes:
        head = kind.to_bytes(2, "little") + b"\1\1" + (64).to_bytes(4, "little") + len(code).to_bytes(8, "little")
        return (head + bytes(12) + arch.to_bytes(4, "little")).ljust(64, b"\0") + code

    def fat(*entries: bytes) -> bytes:
        body = b"".join(entries)
        return b"\x50\xed\x55\xba\1\0\x10\0" + len(body).to_bytes(8, "little") + body

    first = fat(entry(2, 80, b"A" * 100), entry(2, 90, b"B" * 72))
    data = bytearray(b"x" * 13 + first + b"\x50\xed\x55\xba no header" + fat(entry(1, 90, b"C" * 64)) + b"end")
    found = [(code.kind, code.arch, bytes(data[code.start : code.start + code.size])) for code in find_codes(data)]
    assert found == [(2, 80, b"A" * 100), (2, 90, b"B" * 72), (1, 90, b"C" * 64)]
