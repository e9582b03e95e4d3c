"""Finders of learning rate and batch size, the ablation, the trace of steps, and the commands around them."""

import dataclasses
import json
import math
from itertools import cycle

import pytest
import torch
from command_line import penstock_here
from learnable_batch import learnable_batch, tiny_model
from one_thread import one_thread  # noqa: F401
from torch import nn

from penstock.bench.train import batch_finder, resident_run
from penstock.bench.train.ablation import TECHNIQUES, ablate
from penstock.bench.train.batch_finder import find_batch_size, probe_of
from penstock.bench.train.loop import train
from penstock.bench.train.lr_finder import find_lr, steepest
from penstock.bench.train.resident_run import CannotRun, ResidentResult, ResidentRun, measure_here, measure_in_child
from penstock.bench.train.step.models import build_model
from penstock.bench.train.step.settings import TrainSettings
from penstock.bench.train.step.train_step import TrainStep

NUM_PHOTOS = 24
SETTINGS = TrainSettings(lr=0.05, schedule="constant")


def test_the_steepest_descent_of_a_known_curve():
    rates = [10 ** (number / 10 - 6) for number in range(70)]
    losses = [2 / (1 + math.exp(4 * (math.log10(rate) + 3))) + (rate > 0.3) * rate * 9 for rate in rates]
    assert steepest(rates, losses) == pytest.approx(1e-3, rel=0.3)  # the middle of the logistic curve
    with pytest.raises(ValueError, match="never falls"):
        steepest(rates, list(range(70)))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_sweep_finds_a_rate_that_learns(accumulate):
    step = TrainStep(tiny_model(), dataclasses.replace(SETTINGS, accumulate=accumulate))
    step(*learnable_batch(), last=True)
    sweep = find_lr(step, cycle([learnable_batch()]), lowest=1e-5, highest=100.0, num_updates=60)
    assert sweep.rates[0] == pytest.approx(1e-5)
    assert sweep.rates[1] / sweep.rates[0] == pytest.approx(1e7 ** (1 / 59))
    assert len(sweep.rates) == len(sweep.losses) == len(sweep.smoothed)
    assert sweep.smoothed[0] == pytest.approx(sweep.losses[0])
    assert 1e-4 < sweep.suggestion < 10
    step = TrainStep(tiny_model(), dataclasses.replace(SETTINGS, lr=sweep.suggestion))
    losses = [step(*learnable_batch()).item() for _ in range(20)]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError, MemoryError])
@pytest.mark.parametrize("capacity", [0, 1, 5, 8, 120, 128, 5000, 10**6])
def test_the_largest_batch_is_found_to_a_sixteenth(error, capacity):
    tried = []

    def probe(size):
        tried.append(size)
        if size > capacity:
            raise error("full")
        return 10 * size

    found = find_batch_size(probe, start=8, limit=4096)
    assert [trial.batch_size for trial in found.trials] == tried
    assert len(set(tried)) == len(tried) < 20
    assert all(trial.fits == (trial.batch_size <= capacity) for trial in found.trials)
    assert all(trial.peak_bytes == (10 * trial.batch_size if trial.fits else None) for trial in found.trials)
    if capacity == 0:
        assert found.largest is None
    else:
        best = min(capacity, 4096)
        assert best - best // 16 <= found.largest <= best


BASE = ResidentRun(settings=SETTINGS, num_classes=4, batch_size=8, size=32, seconds=0.01)


def test_a_batch_above_the_budget_does_not_fit(monkeypatch):
    asked = []

    def measure(run):
        asked.append(run.batch_size)
        return ResidentResult(images_per_s=1.0, peak_bytes=100 * run.batch_size)

    monkeypatch.setattr(batch_finder, "measure_in_child", measure)
    twice = dataclasses.replace(BASE, settings=dataclasses.replace(SETTINGS, accumulate=2))
    assert find_batch_size(probe_of(twice, budget_bytes=2000), start=4).largest == 10
    assert asked[:2] == [8, 16]  # two batches an update
    assert find_batch_size(probe_of(BASE), limit=64).largest == 64


def test_an_ablation_measures_each_technique_with_and_without():
    asked = []

    def measure(run):
        asked.append(run)
        if run.settings.compile != "off":
            raise CannotRun("no compiler")
        if run.settings.optimizer == "lamb":
            raise MemoryError("full")
        rate = 100.0 + len(asked) / 1000
        return ResidentResult(
            images_per_s=rate / 2 if run.settings.checkpointing == "blocks" else rate,
            peak_bytes=10 if run.settings.checkpointing == "blocks" else 30,
        )

    found = ablate(BASE, measure, rounds=2)
    rows = {row.name: row for row in found.rows}
    assert list(rows) == [*(technique.name for technique in TECHNIQUES), "DataParallel"]
    blocks = rows["checkpointing of blocks"]
    assert blocks.images_per_s[0] == pytest.approx(50, rel=0.01)
    assert blocks.images_per_s[1] == pytest.approx(100, rel=0.01)
    assert found.base_images_per_s == pytest.approx(100, rel=0.01)
    assert blocks.peak_bytes == (10, 30)
    assert [len(part) for part in blocks.rounds] == [2, 2]
    assert rows["torch.compile"].reason == "no compiler"
    assert rows["LAMB for SGD"].reason == "out of memory (full)"
    assert "needs a CUDA device" in rows["AMP, float16"].reason
    assert "changes nothing" in rows["TF32"].reason
    assert "two CUDA devices" in rows["DataParallel"].reason
    # Rounds alternate, what failed is not tried again, the base is measured once a round.
    first, second = asked[: len(asked) // 2 + 1], asked[len(asked) // 2 + 1 :]
    assert list(reversed(second)) == [
        run for run in first if run.settings.compile == "off" and run.settings.optimizer != "lamb"
    ]
    assert asked.count(BASE) == 2
    record = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert record["environment"]["packages"]["torch"] == torch.__version__
    assert record["base"]["settings"]["model"] == "resnet18"


def test_each_technique_has_settings_that_differ_and_exist():
    for technique in TECHNIQUES:
        assert technique.on.keys() == technique.off.keys()
        assert all(technique.on[name] != technique.off[name] for name in technique.on)
        assert all(hasattr(SETTINGS, name) for name in technique.on)


def test_a_base_that_cannot_run_is_an_error():
    def refuse(run):
        raise CannotRun("nothing works")

    with pytest.raises(CannotRun, match="nothing works"):
        ablate(BASE, refuse, rounds=1)
    with pytest.raises(ValueError, match="divided"):
        dataclasses.replace(BASE, settings=dataclasses.replace(SETTINGS, accumulate=3))


def test_run_in_a_child_process_reports_rate_and_memory():
    settings = dataclasses.replace(SETTINGS, accumulate=2)
    found = measure_in_child(dataclasses.replace(BASE, settings=settings, batch_size=4))
    assert found.images_per_s > 0
    weights = sum(p.numel() * 4 for p in build_model(SETTINGS, 4).parameters())
    assert found.peak_bytes > 3 * weights  # weights, gradients, momentum; then activations


def test_an_unsupported_technique_is_a_reason(monkeypatch):
    monkeypatch.setattr("penstock.bench.train.resident_run.build_model", lambda settings, num_classes: nn.Linear(1, 1))
    segments = dataclasses.replace(BASE, settings=dataclasses.replace(SETTINGS, checkpointing="segments"))
    with pytest.raises(CannotRun, match="checkpointing='segments'"):
        measure_here(segments)


def test_a_trace_of_steps_is_written(tmp_path):
    batches = [learnable_batch()] * 6
    file = tmp_path / "deeper" / "trace.json"
    train(tiny_model(), batches, dataclasses.replace(SETTINGS, epochs=1, profile=str(file)))
    events = json.loads(file.read_text())["traceEvents"]
    names = {event.get("name") for event in events}
    assert {"aten::convolution", "aten::cross_entropy_loss"} <= names
    assert {f"ProfilerStep#{number}" for number in (2, 3, 4)} == {n for n in names if str(n).startswith("ProfilerStep")}
    with pytest.raises(ValueError, match="profile needs a run of 5 steps"):
        train(tiny_model(), batches[:4], dataclasses.replace(SETTINGS, epochs=1, profile=str(file)))


def test_the_command_stops_and_resumes(photos, tmp_path):
    command = ("train", photos, "--size", 32, "--batch-size", 8, "--workers", 0, "--epochs", 2, "--device", "cpu")
    techniques = ("--accumulate", 2, "--clip-norm", 1, "--no-inplace", "--schedule", "onecycle", "--optimizer", "adamw")
    file = tmp_path / "run.pt"
    stopped = penstock_here(*command, *techniques, "--checkpoint", file, "--stop-after", 3)
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert stopped.stdout.splitlines()[-1] == f"stopped after 3 updates; saved to {file}"
    report = tmp_path / "report.json"
    resumed = penstock_here(*command, *techniques, "--checkpoint", file, "--resume", "--json", report)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    record = json.loads(report.read_text())
    assert [epoch["epoch"] for epoch in record["epochs"]] == [1]
    assert (record["settings"]["accumulate"], record["settings"]["inplace"]) == (2, False)
    other = penstock_here(*command, "--checkpoint", file, "--resume")
    assert (other.returncode, other.stderr.count("\n")) == (2, 1)
    assert other.stderr.startswith("LoaderError[E-STATE]")


def test_the_command_of_the_ablation(photos, tmp_path, monkeypatch):
    result = ResidentResult(images_per_s=10.0, peak_bytes=2**20)
    monkeypatch.setattr(resident_run, "measure_in_child", lambda run: result)
    file = tmp_path / "deeper" / "record.json"
    short = "--batch-size 8 --size 32 --device cpu --seconds 0.1 --rounds 1"
    done = penstock_here("ablate", photos, *short.split(), "--json", file)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "resident (no loader)" in lines[0]
    assert any(line.startswith("AMP, float16") and "needs a CUDA device" in line for line in lines)
    assert any(line.startswith("channels_last") and " 1.00 " in line for line in lines)
    assert json.loads(file.read_text())["base"]["num_classes"] == 3


def test_cuda_is_started_before_its_memory_is_asked_for(monkeypatch):
    """Otherwise a numbered device has no counters, and torch raises `did you call init?`."""
    asked = []
    for name in ("init", "empty_cache", "reset_peak_memory_stats", "memory_allocated", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda *device, name=name: asked.append(name) or 5)
    assert resident_run._PeakMemory("cuda:1").read() == 0
    assert asked[0] == "init"
    assert len(asked) == 5
