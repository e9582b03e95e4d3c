"""Advice that the benchmark tries itself: the change, the order of measurements, and the report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from bench_records import record as whole_record
from command_line import penstock_here
from one_thread import one_thread  # noqa: F401  (an autouse fixture)
from torch import nn

from penstock.bench.probe.search.candidate import BenchData, Candidate, LoaderOpener
from penstock.bench.record.advice import BOTH, Advice, Change
from penstock.bench.record.bench_record import BenchRecord, Measured, TriedAdvice
from penstock.bench.record.clock import StepTimes
from penstock.bench.record.settings import BenchSettings
from penstock.bench.run import benchmark
from penstock.bench.run import take_advice as applied
from penstock.bench.run.benchmark import run_benchmark
from penstock.bench.run.take_advice import AdviceMeter, apply_change, take_advice
from penstock.bench.run.time_budget import TimeBudget
from penstock.bench.train.step.settings import TrainSettings
from penstock.loaders import open_source
from penstock.pipelines import LoaderError, imagenet_train

PRESENT = Candidate(backend="torch", options={"workers": 2, "prefetch": 3})


def record(**rates: float) -> BenchRecord:
    measured = tuple(Measured.of(kind, kind, [rate]) for kind, rate in rates.items())
    about = {"workers": 2, "decoder": "simplejpeg", "data": {}, "environment": {}, "loader": {}}
    return BenchRecord(settings=BenchSettings(), measured=measured, **about)


def advice(what: str, images_per_s: float | None, change: Change | None, quantity: str = "loader") -> Advice:
    return Advice(what=what, images_per_s=images_per_s, why="it does", quantity=quantity, change=change)


class FakeMeter:
    """Returns rates from a list in order, and records the calls."""

    def __init__(self, rates: list[float], note: str = "") -> None:
        self.rates, self.note = rates, note
        self.asked: list[tuple[Candidate, str, str, str]] = []

    def rate(self, candidate: Candidate, *, quantity: str, amp: str) -> float:
        self.asked.append((candidate, quantity, amp, self.note))
        return self.rates.pop(0)

    @contextmanager
    def on_a_sample(self) -> Iterator[tuple[FakeMeter, str]]:
        self.note = "of 9 images"
        yield self, self.note
        self.note = ""


def take(meter: FakeMeter, *advices: Advice, **rates: float) -> tuple[TriedAdvice, ...]:
    return take_advice(record(**(rates or {"loader": 1000.0})), advices, PRESENT, meter, lambda *_: None, TimeBudget())


def test_a_change_is_measured_alternately_with_the_present_loader() -> None:
    meter = FakeMeter([100.0, 190.0, 170.0, 120.0])
    (result,) = take(meter, advice("--workers 4", 2000.0, Change(workers=4)))
    four = replace(PRESENT, options={"workers": 4, "prefetch": 3})
    assert [candidate for candidate, *_ in meter.asked] == [PRESENT, four, four, PRESENT]
    assert result == TriedAdvice(
        what="--workers 4",
        quantity="loader",
        predicted=220.0,  # twice the rate measured alternately, not the run's rate
        before=110.0,
        measured=180.0,
        rounds=((100.0, 190.0), (120.0, 170.0)),
    )
    assert result.gain == pytest.approx(180 / 110)


def test_cache_is_measured_on_a_sample_and_amp_with_the_model() -> None:
    meter = FakeMeter([1.0] * 8)
    lossless, bf16 = Change(cache="lossless"), Change(amp="bf16")
    cached, precise = take(
        meter, advice("cache", 1500.0, lossless), advice("bf16", 150.0, bf16, BOTH), loader=1000.0, both=100.0
    )
    assert (cached.note, precise.note) == ("of 9 images", "")
    assert {note for *_, note in meter.asked[:4]} == {"of 9 images"}
    assert meter.asked[1][0] == replace(PRESENT, backend="hdf5", cached=True)
    assert [asked[1:] for asked in meter.asked[4:]] == [(BOTH, amp, "") for amp in ("off", "bf16", "bf16", "off")]
    assert [candidate for candidate, *_ in meter.asked[4:]] == [PRESENT] * 4
    assert (cached.predicted, precise.predicted) == (1.5, 1.5)


def test_only_promising_changes_are_tried() -> None:
    meter = FakeMeter([1.0] * 12)
    results = take(
        meter,
        advice("another machine", 9000.0, None),
        advice("unknown", None, Change(workers=3)),
        advice("noise", 1010.0, Change(workers=3)),
        *(advice(f"--workers {n}", 1000.0 * n, Change(workers=n)) for n in (6, 5, 4, 3)),
    )
    assert [each.what for each in results] == ["--workers 6", "--workers 5", "--workers 4"]
    assert meter.rates == []


def test_advice_that_fails_is_reported() -> None:
    class Failing(FakeMeter):
        def rate(self, candidate: Candidate, *, quantity: str, amp: str) -> float:
            if candidate.decoder == "turbojpeg":
                raise LoaderError("E-DEPENDENCY", "no such decoder")
            return super().rate(candidate, quantity=quantity, amp=amp)

    failed, fine = take(
        Failing([1.0] * 5),
        advice("--decoder turbojpeg", 2000.0, Change(decoder="turbojpeg")),
        advice("uint8", 1900.0, Change(dtype="uint8")),
    )
    assert (failed.failed, failed.gain) == ("no such decoder", None)
    assert (fine.failed, fine.gain) == ("", 1.0)


def test_every_field_of_a_change_reaches_the_candidate() -> None:
    made = apply_change(PRESENT, Change(workers=1, decoder="pillow", dtype="uint8", cache="lossless"))
    assert made == Candidate(
        backend="hdf5", decoder="pillow", dtype="uint8", cached=True, options={"workers": 1, "prefetch": 3}
    )
    assert apply_change(PRESENT, Change(amp="bf16")) == PRESENT


def test_model_is_trained_as_in_the_run(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[str, str]] = []

    def train(model: nn.Module, settings: TrainSettings, **_: object) -> StepTimes:
        used.append((settings.compile, settings.amp))
        return StepTimes(images_per_s=None, wait_share=0.0, steps=0)

    monkeypatch.setattr(applied, "build_model", lambda *_: nn.Identity())
    monkeypatch.setattr(applied, "training_times", train)
    settings = BenchSettings(batch_size=8, size=32, workers=0, model="resnet18", compile="default")
    meter = AdviceMeter(LoaderOpener(settings, imagenet_train(32), open_source(photos), None), seconds=0.05)
    meter.rate(replace(PRESENT, options={"workers": 0}), quantity=BOTH, amp="bf16")
    assert used == [("default", "bf16")]


def test_meter_serves_one_sample_from_files_and_cache(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applied, "build_model", lambda *_, **__: nn.Sequential(nn.Flatten(), nn.Linear(3072, 3)))
    settings = BenchSettings(batch_size=8, size=32, workers=0, seconds=0.05, dtype="uint8", model="resnet18")
    opener = LoaderOpener(settings, imagenet_train(32), open_source(photos), None)
    meter = AdviceMeter(opener, settings.seconds)
    present = replace(PRESENT, options={"workers": 0})
    with pytest.raises(ValueError, match="no cache"):
        meter.rate(apply_change(present, Change(cache="lossless")), quantity="loader", amp="off")
    with meter.on_a_sample() as (on_sample, note):
        assert note == "of 40 images"
        assert [len(on_sample.opener.source(cached=cached)) for cached in (False, True)] == [40, 40]
        for candidate in (present, apply_change(present, Change(cache="lossless"))):
            assert on_sample.rate(candidate, quantity="loader", amp="off") > 0
    trained = replace(present, dtype="float32")
    assert meter.rate(trained, quantity=BOTH, amp="bf16") > 0


@pytest.mark.slow
def test_a_run_tries_its_advice_and_records_the_result(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Candidate] = []
    monkeypatch.setattr(AdviceMeter, "rate", lambda _, candidate, **__: (asked.append(candidate), 5.0)[1])
    given = Advice(what="--workers 1", images_per_s=1e9, why="it does", change=Change(workers=1))
    monkeypatch.setattr("penstock.bench.verdict.judge.advise", lambda *_: (given,))
    small = {"batch_size": 8, "size": 32, "workers": 0, "seconds": 0.05, "rounds": 1, "model": None}
    settings = BenchSettings(backend="torch", apply=True, **small)
    document = json.loads(json.dumps(run_benchmark(BenchData(photos, settings), "photos", settings).as_dict()))
    assert [candidate.options["workers"] for candidate in asked] == [0, 1, 1, 0]
    assert [(a["what"], a["before"], a["measured"]) for a in document["applied"]] == [("--workers 1", 5.0, 5.0)]
    unasked = replace(settings, apply=False)
    record = run_benchmark(BenchData(photos, unasked), "photos", unasked)
    assert record.verdict is not None
    assert (record.verdict.advice, record.applied) == ((given,), ())


def test_the_verdict_is_computed_once_for_every_output(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[str] = []
    monkeypatch.setattr("penstock.bench.verdict.judge.advise", lambda record, limit: (judged.append(limit), ())[1])
    small = "--backend torch --model none --workers 0 --batch-size 8 --size 32 --device cpu"
    short = "--thorough --seconds 0.1 --rounds 1 --apply"
    files = tmp_path / "record.json", tmp_path / "page.html"
    run = penstock_here("bench", photos, *f"{small} {short}".split(), "--json", files[0], "--report", files[1])
    assert (run.returncode, files[1].is_file()) == (0, True)
    verdict = json.loads(files[0].read_text())["verdict"]
    assert judged == [verdict["limit"]]
    assert "'DATA'" in verdict["call"]
    assert str(photos) not in files[0].read_text()


def test_advice_is_tried_with_the_runs_measurement_length(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget may have shortened it, and the time reserved for the advice is computed from it."""
    settings = BenchSettings(backend="torch", batch_size=8, size=32, workers=0, seconds=4.0, model=None, apply=True)
    shortened = replace(whole_record(loader=1000.0, decode=1050.0), settings=replace(settings, seconds=0.5))
    tried: list[float] = []
    monkeypatch.setattr(benchmark, "measure_all", lambda *_: shortened)
    monkeypatch.setattr(benchmark, "take_advice", lambda _, __, ___, meter, *_rest: tried.append(meter.seconds) or ())
    run_benchmark(BenchData(photos, settings), "photos", settings)
    assert tried == [0.5]
