"""Verdict and advice for data over a network: latency, bandwidth, or neither."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_records import of_cpu, record, tried

from penstock.bench.record.advice import Advice, Change, Verdict
from penstock.bench.record.bench_record import BenchRecord, read_record
from penstock.bench.record.loader_time import StoreTime, WorkerTime
from penstock.bench.report.sections_measured import step_lanes
from penstock.bench.report.text import repeat_command
from penstock.bench.verdict.judge import judge
from penstock.loaders.system.json_file import write_json

NEAR, FAR = 0.2, 0.1  # seconds of a request among 64: of NEAR, 0.01 alone
WAITING = WorkerTime(busy=0.99, read_share=0.9, worker_s=0.006, queue_depth=0.1)


def of_store(**changes: Any) -> StoreTime:
    """Of 64 requests that take as long together as one alone, of 100 kB each: 640 images/s; of 256 2,000."""
    far = {
        "requests": 64,
        "first_byte_s": 0.098,
        "lone_s": FAR,
        "request_s": FAR,
        "images_per_request": 1.0,
        "bytes_per_s": 64e6,
        "more_requests": 256,
        "more_bytes_per_s": 200e6,
    }
    return StoreTime(**{**far, **changes})


def far(store: StoreTime | None = None, **rates: float) -> BenchRecord:
    usual = {"loader": 620.0, "arriving": 620.0, "decode": 1000.0, "fetch": 640.0, "fetch_more": 2000.0}
    usage = {"loader": of_cpu(0.3)}
    return record(usage=usage, times={"loader": WAITING}, store=store or of_store(), **{**usual, **rates})


def near(**rates: float) -> BenchRecord:
    store = of_store(lone_s=0.01, first_byte_s=0.008, request_s=NEAR, more_requests=None, more_bytes_per_s=None)
    usual = {"loader": 300.0, "arriving": 300.0, "decode": 1000.0, "fetch": 320.0, **rates}
    store = replace(store, bytes_per_s=100_000 * usual["fetch"])
    return record(usage={"loader": of_cpu(0.2)}, times={"loader": WAITING}, store=store, **usual)


def given(verdict: Verdict, what: str) -> Advice:
    return next(advice for advice in verdict.advice or () if advice.what.startswith(what))


def test_latency_is_named_with_the_requests_that_would_help() -> None:
    verdict = judge(far(), "data")
    assert verdict.limit == "latency"
    assert (
        "620 images/s; 64 requests under way, 100 ms each (98 to the first byte), bring 640, 256 would bring 2,000"
        in (verdict.sentence)
    )
    more = given(verdict, "--requests 256")
    assert (more.what, more.change) == ("--requests 256", Change(requests=256))
    assert more.images_per_s == 2000  # also what two processors decode
    assert "then decoding" in given(judge(far(decode=900), "data"), "--requests").why


def test_only_the_remote_share_of_joined_data_is_expected_to_arrive() -> None:
    a_third = far(of_store(share=0.3), arriving=186.0)
    assert judge(a_third, "data").limit == "latency"
    assert judge(far(arriving=186.0), "data").limit != "latency"  # all is remote: most came from memory


def test_larger_samples_need_more_bytes_ahead() -> None:
    large = of_store(bytes_per_s=6.4e9, more_bytes_per_s=20e9)  # 10 MB each
    more = given(judge(far(large), "data"), "--requests")
    assert more.what == "--requests 256 --bytes-ahead 5120000000"
    assert more.change == Change(requests=256, bytes_ahead=5_120_000_000)
    short = far(loader=300.0, arriving=300.0)
    short = replace(short, settings=replace(short.settings, data_options={"bytes_ahead": 1_000_000}))
    verdict = judge(short, "data")
    assert verdict.limit == "latency"
    assert "fewer than 64 are under way; that many would bring 640" in verdict.sentence
    ahead = given(verdict, "--bytes-ahead 12800000")
    assert (ahead.change, ahead.images_per_s) == (Change(bytes_ahead=12_800_000), 640)
    assert "enough for 10.0 of 64 requests" in ahead.why


def test_blocks_join_many_requests_into_one() -> None:
    blocks = given(judge(far(), "data"), "shuffle='blocks'")
    assert blocks.change == Change(shuffle="blocks", bytes_ahead=2_048_000_000)  # 20,480 images of 100 kB
    assert blocks.what == "shuffle='blocks' in create_loader, and --bytes-ahead 2048000000"
    assert blocks.images_per_s == 2000  # the bandwidth, of 200 MB/s
    assert "up to 41 images, now 1.0" in blocks.why


def test_bandwidth_is_named_with_advice_for_local_data() -> None:
    verdict = judge(near(cache=1250.0), "data")
    assert verdict.limit == "bandwidth"
    assert "300 images/s; 32.0 MB/s (320 images/s) with 64 concurrent requests; decoding could do 2,000" in (
        verdict.sentence
    )
    copy = given(verdict, "--local-cache FOLDER")
    assert copy.images_per_s == pytest.approx(1500)  # 0.67 ms of each processor per image
    assert "(20.0 MB)" in copy.why
    assert given(verdict, "a lossless cache").change is None  # a sample of it does not measure the network
    assert given(verdict, "more bandwidth")
    assert not [advice for advice in verdict.advice or () if advice.what.startswith(("--requests", "shuffle"))]
    same = judge(far(of_store(more_bytes_per_s=65e6), fetch_more=650.0), "data")
    assert same.limit == "bandwidth"
    assert "no more with 256" in same.sentence


def test_the_network_is_not_named_where_something_else_limits() -> None:
    assert judge(near(loader=100.0, arriving=100.0, model=90.0, both=89.0), "data").limit == "model"
    assert judge(near(loader=300.0, normalise=310.0), "data").limit == "transfer"
    decoding = record(
        loader=1900, arriving=1900, decode=1000, fetch=9000, store=of_store(), usage={"loader": of_cpu(0.96)}
    )
    assert judge(decoding, "data").limit == "decode"


def test_data_from_memory_is_not_judged_by_the_network_except_its_first_epoch() -> None:
    small = record(loader=1900, arriving=5, decode=1000, fetch=320, store=of_store(), usage={"loader": of_cpu(0.96)})
    verdict = judge(small, "data")
    assert verdict.limit == "decode"
    assert "from memory or the local copy: while they still come over the network, it gives 320 images/s" in (
        verdict.sentence
    )


def test_a_record_keeps_the_figures_and_the_call_each_option_once(tmp_path: Path) -> None:
    made = far()
    options = {"requests": 64, "label": "cls", "local_cache": "/secret/copy"}
    chosen = tried("torch of the files", 900.0, workers=2, requests=256)
    made = replace(made, settings=replace(made.settings, data_options=options), chosen=chosen)
    made = replace(made, verdict=judge(made, "https://user:key@host/a.tar?signed=1"))
    assert made.verdict is not None
    assert made.verdict.call.count("requests=") == 1
    assert "requests=256" in made.verdict.call
    write_json(tmp_path / "a.json", made.as_dict())
    assert read_record(tmp_path / "a.json").store == made.store
    assert json.loads((tmp_path / "a.json").read_text())["settings"]["data_options"]["local_cache"] == "copy"
    assert "--requests 64 --label cls --local-cache /secret/copy" in repeat_command(made.settings)
    assert next(iter(step_lanes(made))).startswith("Requests")
