"""The verdict names the resource that limits, from the record's own figures."""

from __future__ import annotations

import ast
import io
from dataclasses import replace
from pathlib import Path

import pytest
from bench_records import of_cpu, record

from penstock.bench.measure.resources import Resources
from penstock.bench.record.record import (
    BenchRecord,
    Measured,
    Tried,
)
from penstock.bench.report.terminal import render
from penstock.bench.verdict.advice import Advice, Change
from penstock.bench.verdict.verdict import decode_ceiling, judge


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


# rates, what loader and both took, limit, words of the sentence, advice with its prediction
LIMITS: list[tuple[dict[str, float], dict[str, Resources], str, str, list[tuple[str, float | None]]]] = [
    (
        {"loader": 400, "cold": 190, "decode": 1050},
        {"loader": of_cpu(0.3, storage_mb_s=38.0)},
        "storage",
        "95% of the bytes came from it, 380 if each worker reads as fast as one alone",
        [("faster storage", 2100)],
    ),
    (  # the processors are busy: it is not storage that is waited for
        {"loader": 1950, "cold": 5000, "decode": 1050},
        {"loader": of_cpu(0.95, storage_mb_s=190.0)},
        "decode",
        "JPEG decoding on 2 processors",
        [("another processor", 2925)],
    ),
    (
        {"loader": 2000, "decode": 1050, "decode_alone": 1300, "resize": 5000, "cache": 1365, "turbojpeg": 1155},
        {},
        "decode",
        "2,100",
        [("another processor", 3000), ("a lossless cache", 2600), ("--decoder turbojpeg", 2200)],
    ),
    (  # what follows from a prediction is capped by the next ceiling
        {"loader": 2000, "decode": 1050, "cache": 1365, "normalise": 2300},
        {},
        "decode",
        "2,100",
        [("a lossless cache", 2300), ("another processor", 2300)],
    ),
    (
        {"loader": 2000, "decode": 1050, "decode_alone": 5000, "resize": 1300},
        {},
        "resize",
        "Resizing on 2",
        [("another", 3000)],
    ),
    (
        {"loader": 1200, "decode": 1050},
        {"loader": of_cpu(0.6, others_share=0.36)},
        "cpu",
        "60% by this loader and 36% by other programs",
        [("stop the other programs", 1920)],
    ),
    ({"loader": 1200, "decode": 1050}, {"loader": of_cpu(0.5)}, "loader", "57% of the decode ceiling", []),
    (
        {"loader": 1900, "decode": 2000, "normalise": 2000, "copy": 9000},
        {},
        "transfer",
        "Copying and normalising",
        [("--dtype uint8", 4000)],
    ),
    (
        {"loader": 1900, "decode": 2000, "normalise": 4000, "replayed": 2000},
        {},
        "consumer",
        "batches from memory arrive at 2,000",
        [("--dtype uint8", 4000)],
    ),
    (
        {"loader": 2000, "model": 1000, "both": 780, "replayed_model": 800, "decode": 1050},
        {},
        "consumer",
        "780 images/s with it, 800 with batches from memory",
        [("--dtype uint8", None)],
    ),
    (
        {"loader": 2000, "model": 1000, "both": 600, "replayed_model": 990, "decode": 1050},
        {"both": of_cpu(0.98)},
        "cpu",
        "share the processors",
        [("a processor of its own", None)],
    ),
    (
        {"loader": 2000, "model": 500, "both": 490, "decode": 1050},
        {},
        "model",
        "4.0 times",
        [("--workers 1", 1000), ("a faster device", None)],
    ),
]


@pytest.mark.parametrize(("rates", "taken", "limit", "words", "advice"), LIMITS)
def test_each_limit_is_told_with_what_to_change(
    rates: dict[str, float],
    taken: dict[str, Resources],
    limit: str,
    words: str,
    advice: list[tuple[str, float | None]],
) -> None:
    verdict = judge(record(taken=taken, **rates), "photos")
    assert verdict.limit == limit
    assert words in verdict.sentence
    assert "\n" not in verdict.sentence
    assert len(verdict.advice) == len(advice)
    for given, (what, predicted) in zip(verdict.advice, advice, strict=True):
        assert given.what.startswith(what)
        assert given.images_per_s == pytest.approx(predicted)
        assert given.why


def test_fewer_workers_than_processors_are_the_first_thing_to_change() -> None:
    verdict = judge(record(loader=1000, decode=1050, workers=1), "photos")
    assert (verdict.limit, verdict.advice[0].what, verdict.advice[0].images_per_s) == ("decode", "--workers 2", 2000)


def test_what_the_page_cache_hides_is_said_unless_storage_was_read() -> None:
    rates = {"loader": 2000.0, "decode": 1050.0, "cold": 300.0}
    hidden = judge(record(**rates), "photos")
    assert "in the page cache: from storage 2 workers would read 600 images/s" in hidden.sentence
    read = {"loader": of_cpu(0.95, storage_mb_s=200.0)}
    assert "page cache" not in judge(record(taken=read, **rates), "photos").sentence
    assert "page cache" not in judge(record(**{**rates, "cold": 1100.0}), "photos").sentence


def test_resources_and_advice_are_shown_and_only_where_there_are_any() -> None:
    from rich.console import Console

    def shown(of: BenchRecord) -> str:
        console = Console(width=200, record=True, file=io.StringIO())
        console.print(render(of, judge(of, "photos")))
        return " ".join(console.export_text().split())

    taken = {"loader": of_cpu(0.75, memory_mb=1234.0)}
    text = shown(record(loader=2000, decode=1050, cache=1365, taken=taken))
    for words in ("75% CPU", "1,234 MB", "To change: a lossless cache", "predicted 2,600 images/s, 1.30 times"):
        assert words in text, words
    assert "GPU" not in text
    assert "took" not in shown(record(loader=2000, decode=1050))
    gpu = {"loader": of_cpu(0.75, gpu_share=0.4, gpu_memory_mb=5000.0)}
    gpu_text = shown(record(loader=2000, decode=1050, taken=gpu))
    assert "40% GPU" in gpu_text
    assert "5,000 MB GPU" in gpu_text


def test_advice_is_part_of_the_written_record(tmp_path: Path) -> None:
    import json

    from penstock.bench.commands.bench import _write_record

    measured = record(loader=2000, decode=1050, cache=1365, taken={"loader": of_cpu(0.75, memory_mb=1234.0)})
    verdict = judge(measured, "photos")
    _write_record(measured, verdict, tmp_path / "a.json")
    document = json.loads((tmp_path / "a.json").read_text())
    told = document["verdict"]["advice"]
    changes = [Change(**each.pop("change")) if each["change"] else each.pop("change") for each in told]
    assert [Advice(**each, change=made) for each, made in zip(told, changes, strict=True)] == list(verdict.advice)
    assert Change(cache="lossless") in changes
    assert document["measured"][0]["resources"]["memory_mb"] == 1234


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


def tried(name: str, rate: float | None, **options: int) -> Tried:
    """Of the backend that the name begins with; the last option, `why`, is none of its knobs."""
    backend = name.partition(" ")[0]
    return Tried(
        name=name,
        backend=backend,
        decoder="simplejpeg",
        cached=backend == "hdf5",
        options=options,
        images_per_s=rate,  # type: ignore[arg-type]
    )


def test_what_was_searched_and_left_out_is_shown_and_goes_into_the_call() -> None:
    from rich.console import Console

    peer = Measured.of("DALI's own", "baseline", [500.0], note="2 threads")
    plain = record(loader=1000, baseline=400, decode=1050)
    shown = replace(
        plain,
        measured=(*plain.measured, peer),
        candidates=(
            tried("dali of the files, workers 2, readers 1", 900.4, workers=2, readers=1),
            tried("dali of the files, workers 2, readers 2", 1000.0, workers=2, readers=2),
            replace(tried("dali of the files, workers 2, readers 4", None, workers=2, readers=4), why="out of memory"),
        ),
        chosen=tried("dali of the files", 1000.0, workers=2, readers=2, prefetch=2),
        notes=("a peer was left out: it has no files",),
    )
    verdict = judge(shown, "photos")
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render(shown, verdict))
    text = " ".join(console.export_text().split())
    for words in (
        "Tried dali of the files, workers 2, readers 1, images/s by short measurements: readers 2: 1,000, as it is",
        "as it is: 900; readers 4: out of memory.",
        "a peer was left out: it has no files",
        "2.50 times the images/s of torch DataLoader + Pillow.",
        "2.00 times the images/s of DALI's own, 2 threads.",
        "Recommended: backend 'dali', 2 workers, readers 2,",
    ):
        assert words in text, words
    assert "    readers=2,\n" in verdict.call
    assert "prefetch" not in verdict.call  # DALI's own


@pytest.mark.parametrize(
    ("backend", "cached", "data", "cache"),
    [
        ("hdf5", True, "photos", "photos.h5"),
        ("dali", True, "photos", "photos.h5"),
        ("torch", True, "photos.h5", None),  # which takes a cache as its source
        ("torch", False, "photos", None),
        ("dali", False, "photos", None),
    ],
)
def test_the_call_names_the_cache_only_where_the_choice_reads_it(
    backend: str, cached: bool, data: str, cache: str | None
) -> None:
    plain = record(loader=1000, decode=1050)
    choice = replace(tried(f"{backend} of something", 1200.0, workers=3, prefetch=6), cached=cached)
    call = judge(replace(plain, settings=replace(plain.settings, cache="photos.h5"), chosen=choice), "photos").call
    assert f"create_loader(\n    {data!r},\n    backend={backend!r},\n" in call
    assert ("    cache='photos.h5',\n" in call) == (cache is not None)
    assert "    workers=3,\n" in call
    assert call.endswith("    prefetch=6,\n)")


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


def test_a_decoder_that_the_search_has_tried_is_not_advised() -> None:
    measured = record(loader=2000, decode=1050, decode_alone=1300, resize=5000, turbojpeg=1155)
    backend = str(measured.loader["backend"])
    tried = Tried(name=backend, backend=backend, decoder="turbojpeg", cached=False, options={})
    offered = [judge(each, "d").advice for each in (measured, replace(measured, candidates=(tried,)))]
    assert ["--decoder turbojpeg" in [advice.what for advice in made] for made in offered] == [True, False]
