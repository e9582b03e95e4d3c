"""Limits derived from the workers' time, and predictions of advice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench_records import of_cpu, record

from penstock.bench.record.advice import BOTH, LOADER, Advice, Change, Verdict
from penstock.bench.record.loader_time import WorkerTime
from penstock.bench.verdict.judge import judge

SLOW = {"loader": 180.0, "decode": 1000.0, "many": 700.0, "normalise": 20_000.0}


def time(busy: float, read_share: float, *, worker_s: float = 0.011, queue_depth: float = 0.1) -> WorkerTime:
    return WorkerTime(busy=busy, read_share=read_share, worker_s=worker_s, queue_depth=queue_depth)


def reading(*, cpu: float = 0.15, read_share: float = 0.9, others: float = 0.0, **rates: float) -> Verdict:
    """For a source that two workers wait for, by default 10 ms per image and 1 ms of work."""
    usage = {"loader": of_cpu(cpu, others_share=others)}
    return judge(record(usage=usage, times={"loader": time(0.99, read_share)}, **{**SLOW, **rates}), "photos")


def given(verdict: Verdict, what: str) -> Advice:
    return next(advice for advice in verdict.advice if advice.what.startswith(what))


def test_storage_is_detected_by_the_workers_waits() -> None:
    verdict = reading()
    assert verdict.limit == "storage"
    assert "90% of their time reading, 9.9 ms per image" in verdict.sentence
    assert "many reads at once give 700 images/s, so each waits" in verdict.sentence
    assert "its bandwidth is used up" in reading(many=190.0).sentence
    assert reading(read_share=0.3).limit == "loader"
    assert reading(cpu=0.95).limit == "cpu"  # it is work inside the source
    assert reading(others=0.8).limit == "storage"  # the images take 1.7 ms of a processor, and their reads 9.9


@pytest.mark.parametrize(
    ("rates", "workers", "rate", "words"),
    [
        ({}, 8, 700, "then reading with many threads limits"),
        ({"many": 5000}, 8, 720, "9.9 ms for its bytes and works 1.1 ms"),
        ({"many": 300}, 4, 300, "then reading"),
        ({"many": 5000, "normalise": 250}, 4, 250, "then the feed"),
    ],
)
def test_more_workers_are_advised_up_to_the_next_limit(
    rates: dict[str, float], workers: int, rate: float, words: str
) -> None:
    advice = given(reading(**rates), "--workers")
    assert (advice.what, advice.change) == (f"--workers {workers}", Change(workers=workers))
    assert advice.images_per_s == pytest.approx(rate)
    assert words in advice.why


def test_with_many_reads_the_processors_are_the_next_limit() -> None:
    advice = given(reading(cpu=0.4, many=5000.0), "--workers")
    assert (advice.what, advice.images_per_s) == ("--workers 6", pytest.approx(450))  # 2 processors, 4.4 ms per image


def test_more_workers_are_not_advised_if_the_bandwidth_is_used_up() -> None:
    advice = reading(many=190.0, cache=1250.0).advice
    assert [each.what[:8] for each in advice] == ["faster s", "a lossle"]


def test_a_local_cache_is_limited_by_the_rest_of_an_images_work() -> None:
    # A worker: 1.1 ms without reads, 1 ms of it decoding, 0.8 with a cache; the processors: 1.67 ms in all.
    advice = given(reading(cache=1250.0), "a lossless cache on a fast disk")
    assert advice.images_per_s == pytest.approx(2 / (0.0016667 - 0.001 + 0.0008), rel=1e-3)
    assert advice.change == Change(cache="lossless")
    assert "then the processors" in advice.why
    local = record(
        usage={"loader": of_cpu(0.15, storage_mb_s=18.0)}, times={"loader": time(0.99, 0.9)}, cache=1250.0, **SLOW
    )
    assert (
        given(judge(local, "photos"), "a lossless cache on a fast disk").change is None
    )  # not on the disk that limits


def test_workers_that_wait_with_finished_batches_are_not_the_limit() -> None:
    rates = {"loader": 1500.0, "decode": 2500.0, "normalise": 2200.0, "replayed": 2000.0}
    times = {"loader": time(0.5, 0.1, worker_s=0.0007, queue_depth=4.0)}
    usage = {"loader": of_cpu(0.95)}
    verdict = judge(record(usage=usage, times=times, **rates), "photos")
    assert verdict.limit == "transfer"
    assert "1,500 images/s, 2,000 if nothing else runs; the workers are busy 50%" in verdict.sentence
    assert judge(record(usage=usage, times=times, **{**rates, "normalise": 9000}), "photos").limit == "consumer"
    (advice,) = verdict.advice
    # All processors need 1.27 ms per image, 0.5 of it to feed: 2 processors could do 2,609.
    assert (advice.change, advice.quantity) == (Change(dtype="uint8"), LOADER)
    assert advice.images_per_s == pytest.approx(2 / (1.9 / 1500 - 1 / 2000))
    slow = {"loader": time(0.5, 0.1, worker_s=0.001, queue_depth=4.0)}
    (advice,) = judge(record(usage=usage, times=slow, **rates), "photos").advice
    assert advice.images_per_s == pytest.approx(2000)
    assert "then the workers' time limits" in advice.why
    busy = judge(record(usage=usage, times={"loader": time(0.8, 0.1, queue_depth=4.0)}, **rates), "photos")
    empty = judge(record(usage=usage, times={"loader": time(0.5, 0.1, queue_depth=0.5)}, **rates), "photos")
    assert {busy.limit, empty.limit} == {"cpu"}


def test_workers_that_never_wait_are_limited_by_most_of_their_work() -> None:
    rates, usage = {"loader": 1300.0, "decode": 1000.0}, {"loader": of_cpu(0.95)}
    assert judge(record(usage=usage, **rates), "photos").limit == "cpu"
    assert judge(record(usage=usage, times={"loader": time(0.98, 0.1)}, **rates), "photos").limit == "decode"
    hindered = {"loader": of_cpu(0.7, others_share=0.28)}
    assert judge(record(usage=hindered, times={"loader": time(0.98, 0.1)}, **rates), "photos").limit == "cpu"


def test_work_other_than_decoding_does_not_become_cheaper() -> None:
    # Two processors, 1.25 ms per image, 1 ms of it decoding; 0.5 ms with a cache.
    verdict = judge(
        record(loader=1600, decode=1000, cache=2000, usage={"loader": of_cpu(1.0)}, times={"loader": time(1.0, 0.1)}),
        "photos",
    )
    assert given(verdict, "a lossless cache").images_per_s == pytest.approx(1600 * 1.25 / 0.75)
    # One worker of two processors: its own time counts.
    one = record(
        loader=800,
        decode=1000,
        cache=2000,
        workers=1,
        usage={"loader": of_cpu(0.6)},
        times={"loader": time(1.0, 0.1, worker_s=0.00125)},
    )
    assert given(judge(one, "photos"), "a lossless cache").images_per_s == pytest.approx(800 * 1.25 / 0.75)
    assert given(judge(one, "photos"), "--workers 2").images_per_s == pytest.approx(2 / 0.0015)  # of all processors


TRAINING = {"loader": 2000.0, "decode": 1050.0, "model": 100.0, "both": 80.0, "bf16": 200.0}


def test_mixed_precision_shortens_the_step_but_not_its_waits() -> None:
    verdict = judge(record(**TRAINING), "photos")
    assert verdict.limit == "model"
    advice = given(verdict, "--amp bf16")
    assert (advice.quantity, advice.change) == (BOTH, Change(amp="bf16", dtype="bfloat16"))
    assert advice.images_per_s == pytest.approx(80 / (0.25 + 0.75 / 2))
    assert "200 images/s with it, 100 without" in advice.why
    capped = given(judge(record(**{**TRAINING, "both": 99.0, "loader": 120.0}), "photos"), "--amp bf16")
    assert capped.images_per_s == 120
    assert "then the loader limits" in capped.why
    slower = judge(record(**{**TRAINING, "bf16": 99.0}), "photos")
    assert not [advice for advice in slower.advice if "bf16" in advice.what]


def test_mixed_precision_frees_the_models_share_of_the_processors() -> None:
    # 25 ms per image together on two processors, 1 ms of it loading: 24 become 12.
    usage = {"loader": of_cpu(1.0), "both": of_cpu(1.0)}
    rates = {**TRAINING, "model": 1000.0, "bf16": 2000.0}
    verdict = judge(record(usage=usage, **rates), "photos")
    assert verdict.limit == "cpu"
    assert given(verdict, "--amp bf16").images_per_s == pytest.approx(80 / (0.25 + 0.75 / 2))
    heavy = judge(record(usage=usage, **{**rates, "both": 600.0}), "photos")
    # 3.33 ms together, 1 ms of it loading; the other 2.33 become 1.17.
    assert given(heavy, "--amp bf16").images_per_s == pytest.approx(2 / (0.001 + 0.0023333 / 2), rel=1e-3)
    gpu = record(usage=usage, **{**rates, "both": 600.0})
    gpu = replace(gpu, settings=replace(gpu.settings, device="cuda"))
    assert not [each for each in judge(gpu, "photos").advice if "bf16" in each.what]  # the host's work stays


def test_cheaper_loading_leaves_more_of_the_processors_to_the_model() -> None:
    rates = {"loader": 2000.0, "decode": 1000.0, "cache": 2000.0, "model": 1000.0, "both": 600.0}
    verdict = judge(record(usage={"both": of_cpu(1.0), "loader": of_cpu(1.0)}, **rates), "photos")
    advice = given(verdict, "a lossless cache")
    # 3.33 ms of processors together; a cache saves half a millisecond.
    assert (advice.quantity, advice.images_per_s) == (BOTH, pytest.approx(2 / (2 / 600 - 0.0005)))
