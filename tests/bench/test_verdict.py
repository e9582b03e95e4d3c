"""The verdict names the resource that limits, from the record's own figures."""

from __future__ import annotations

import ast
import io
from dataclasses import replace

import pytest

from penstock.bench.record import BenchRecord, BenchSettings, Measured
from penstock.bench.report import render
from penstock.bench.tuning import Tuned
from penstock.bench.verdict import decode_ceiling, judge


def record(*, workers: int = 2, dtype: str = "float32", **rates: float) -> BenchRecord:
    """A record with `loader`, `model`, `both`, `decode` (one thread) and `normalise` rates, in images/s."""
    names = {
        "loader": ("loader", "penstock, torch backend"),
        "model": ("model", "resnet18 on a resident batch"),
        "both": ("both", "penstock + resnet18"),
        "decode": ("ceiling", "decode + resize, simplejpeg, one thread"),
        "normalise": ("ceiling", "normalise"),
        "baseline": ("baseline", "torch DataLoader + Pillow"),
    }
    measured = []
    for key, rate in rates.items():
        kind, name = names[key]
        share = 0.25 if key == "both" else None
        measured.append(Measured.of(name, kind, [rate * 0.9, rate, rate * 1.2], wait_share=share))
    return BenchRecord(
        settings=BenchSettings(workers=workers, dtype=dtype),
        workers=workers,
        decoder="simplejpeg",
        data={"summary": "200 images", "images": 200, "fingerprint": "f"},
        environment={"cpus": 2, "cpu": "some CPU", "gpu": None},
        loader={"backend": "torch", "workers": workers, "prefetch": 3},
        measured=tuple(measured),
    )


@pytest.mark.parametrize(
    ("rates", "limit", "words"),
    [
        ({"loader": 2000, "model": 500, "both": 490, "decode": 1050, "normalise": 20_000}, "model", "4.0 times"),
        ({"loader": 2000, "model": 5000, "both": 1990, "decode": 1050, "normalise": 20_000}, "decode", "2 processors"),
        ({"loader": 1000, "model": 5000, "both": 990, "decode": 1050, "normalise": 20_000}, "loader", "48%"),
        ({"loader": 1900, "model": 5000, "both": 990, "decode": 2000, "normalise": 2000}, "transfer", "2,000"),
        ({"loader": 2000, "decode": 1050}, "decode", "More processors"),
    ],
)
def test_the_limit_is_the_resource_that_is_used_up(rates: dict[str, float], limit: str, words: str) -> None:
    verdict = judge(record(**rates), "photos")
    assert verdict.limit == limit
    assert words in verdict.sentence
    assert "\n" not in verdict.sentence


def test_the_decode_ceiling_counts_processors_not_workers() -> None:
    assert decode_ceiling(record(decode=1000, workers=1)) == 1000
    assert decode_ceiling(record(decode=1000, workers=2)) == 2000
    assert decode_ceiling(record(decode=1000, workers=8)) == 2000
    assert decode_ceiling(record(decode=1000, workers=0)) == 1000


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_call_to_paste_is_python_with_the_measured_settings(dtype: str) -> None:
    call = judge(record(loader=2000, decode=1050, dtype=dtype), "it's a folder").call
    tree = ast.parse(call)
    made = next(
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "create_loader"
    )
    assert ast.literal_eval(made.args[0]) == "it's a folder"
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in made.keywords}
    assert (given["workers"], given["decoder"], given["backend"]) == ("2", "'simplejpeg'", "'torch'")
    assert given.get("dtype") == (None if dtype == "float32" else "torch.bfloat16")
    assert ("import torch" in call) == (dtype != "float32")


def test_the_report_shows_every_measurement_the_ratio_and_the_verdict() -> None:
    from rich.console import Console

    shown = record(loader=2000, baseline=1000, decode=1050, model=5000, both=1990)
    console = Console(width=100, record=True, file=io.StringIO())
    verdict = judge(shown, "photos")
    console.print(render(shown, verdict))
    text = " ".join(console.export_text().split())
    for words in ("2,000", "1,000", "1,050", "2,100", "5,000", "2.00 times", "25% of the step", "some CPU", "2,400"):
        assert words in text, words
    assert verdict.sentence in text


def test_what_was_tuned_and_left_out_is_shown_and_goes_into_the_call() -> None:
    from rich.console import Console

    peer = Measured.of("DALI's own", "baseline", [500.0], note="2 threads")
    plain = record(loader=1000, baseline=400, decode=1050)
    shown = replace(
        plain,
        measured=(*plain.measured, peer),
        tuned={"readers": Tuned(chosen=2, tried={"1": 900.4, "2": 1000.0}, failed={"4": "out of memory"})},
        options={"readers": 2},
        notes=("a peer was left out: it has no files",),
    )
    verdict = judge(shown, "photos")
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render(shown, verdict))
    text = " ".join(console.export_text().split())
    for words in (
        "Knob readers: 2 (images/s of 1: 900, 2: 1,000; 4 left out: out of memory).",
        "a peer was left out: it has no files",
        "2.50 times the images/s of torch DataLoader + Pillow.",
        "2.00 times the images/s of DALI's own, 2 threads.",
        "2 workers, readers 2,",
    ):
        assert words in text, words
    assert "    readers=2,\n" in verdict.call


def test_a_loader_that_decodes_on_the_gpu_is_not_measured_by_what_the_host_could_do() -> None:
    host = record(loader=4000, model=9000, both=3900, decode=1050, normalise=4100)
    assert judge(host, "photos").limit == "transfer"
    device = judge(replace(host, loader={**host.loader, "decodes_on": "cuda"}), "photos")
    assert device.limit == "loader"
    assert "on the GPU: 4,000 images/s, 1.9 times" in device.sentence


def test_dali_on_a_cpu_is_told_of_faster_backends_instead_of_more_workers() -> None:
    host = record(loader=900, model=9000, both=900, decode=1050, normalise=4100)
    without_gpu = judge(replace(host, loader={**host.loader, "decodes_on": "cpu"}), "photos")
    assert without_gpu.limit == "loader"
    assert "900 images/s of 2,100 that simplejpeg could decode here" in without_gpu.sentence
    assert "torch (files) and hdf5 (a cache) are faster" in without_gpu.sentence
    assert "more workers" in judge(host, "photos").sentence
