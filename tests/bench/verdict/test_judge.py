"""The verdict names the limiting resource, from the record's own figures."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_records import of_cpu, record, tried

from penstock.bench.record.advice import Change
from penstock.bench.record.bench_record import BenchRecord, read_record
from penstock.bench.record.resources import Resources
from penstock.bench.verdict.figures import Figures
from penstock.bench.verdict.judge import judge, without_paths
from penstock.loaders.system.json_file import decode_json, write_json

# limit, words of the sentence, advice with its prediction, rates, usage of loader and both
LIMITS: list[tuple[str, str, dict[str, float | None], dict[str, float], dict[str, Resources]]] = [
    ("storage", "95% of the bytes came from it, 380 if each worker reads as fast as", {"faster storage": 2100},
     {"loader": 400, "cold": 190, "decode": 1050}, {"loader": of_cpu(0.3, storage_mb_s=38.0)}),
    # the processors are busy: storage is not the limit
    ("decode", "JPEG decoding on 2 processors", {"another processor": 2925},
     {"loader": 1950, "cold": 5000, "decode": 1050}, {"loader": of_cpu(0.95, storage_mb_s=190.0)}),
    ("decode", "2,100", {"another processor": 3000, "a lossless cache": 2600, "--decoder turbojpeg": 2200},
     {"loader": 2000, "decode": 1050, "decode_alone": 1300, "resize": 5000, "cache": 1365, "turbojpeg": 1155}, {}),
    # predictions are capped by the next ceiling
    ("decode", "2,100", {"a lossless cache": 2300, "another processor": 2300},
     {"loader": 2000, "decode": 1050, "cache": 1365, "normalise": 2300}, {}),
    ("resize", "Resizing on 2", {"another": 3000},
     {"loader": 2000, "decode": 1050, "decode_alone": 5000, "resize": 1300}, {}),
    ("cpu", "60% by this loader and 36% by other programs", {"stop the other programs": 1920},
     {"loader": 1200, "decode": 1050}, {"loader": of_cpu(0.6, others_share=0.36)}),
    ("loader", "57% of the decode ceiling", {}, {"loader": 1200, "decode": 1050}, {"loader": of_cpu(0.5)}),
    ("transfer", "Copying and normalising", {"--dtype uint8": 4000},
     {"loader": 1900, "decode": 2000, "normalise": 2000, "copy": 9000}, {}),
    ("consumer", "batches from memory arrive at 2,000", {"--dtype uint8": 4000},
     {"loader": 1900, "decode": 2000, "normalise": 4000, "replayed": 2000}, {}),
    ("consumer", "780 images/s with it, 800 with batches from memory", {"--dtype uint8": None},
     {"loader": 2000, "model": 1000, "both": 780, "replayed_model": 800, "decode": 1050}, {}),
    ("cpu", "share the processors", {"a processor of its own": None},
     {"loader": 2000, "model": 1000, "both": 600, "replayed_model": 990, "decode": 1050}, {"both": of_cpu(0.98)}),
    ("model", "4.0 times", {"--workers 1": 1000, "a faster device": None},
     {"loader": 2000, "model": 500, "both": 490, "decode": 1050}, {}),
    # a model that is faster than the loader is not the limit
    ("decode", "2,100", {"another": 3000}, {"loader": 2000, "model": 5000, "both": 1990, "decode": 1050}, {}),
    ("loader", "48%", {}, {"loader": 1000, "model": 5000, "both": 990, "decode": 1050}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("limit", "words", "advice", "rates", "usage"), LIMITS)
def test_each_limit_is_reported_with_advice(limit, words, advice, rates, usage) -> None:
    verdict = judge(record(usage=usage, **rates), "photos")
    assert verdict.limit == limit
    assert words in verdict.sentence
    assert "\n" not in verdict.sentence
    for given, (what, predicted) in zip(verdict.advice or (), advice.items(), strict=True):
        assert given.what.startswith(what)
        assert given.images_per_s == pytest.approx(predicted)
        assert given.why


def test_more_workers_are_the_first_advice() -> None:
    verdict = judge(record(loader=1000, decode=1050, workers=1), "photos")
    assert (verdict.limit, verdict.advice[0].what, verdict.advice[0].images_per_s) == ("decode", "--workers 2", 2000)


def test_page_cache_is_mentioned_unless_storage_was_read() -> None:
    rates = {"loader": 2000.0, "decode": 1050.0, "cold": 300.0}
    hidden = judge(record(**rates), "photos")
    assert "in the page cache: from storage 2 workers would read 600 images/s" in hidden.sentence
    read = {"loader": of_cpu(0.95, storage_mb_s=200.0)}
    assert "page cache" not in judge(record(usage=read, **rates), "photos").sentence
    assert "page cache" not in judge(record(**{**rates, "cold": 1100.0}), "photos").sentence


def test_record_is_read_as_written(tmp_path: Path) -> None:
    measured = record(loader=2000, decode=1050, cache=1365, usage={"loader": of_cpu(0.75, memory_mb=1234.0)})
    searched = (tried("hdf5 of the cache", 9.5, workers=2),)
    made = replace(measured, verdict=judge(measured, "photos"), candidates=searched)
    write_json(tmp_path / "a.json", made.as_dict())
    assert read_record(tmp_path / "a.json") == made
    assert made.verdict is not None
    assert Change(cache="lossless") in [advice.change for advice in made.verdict.advice or ()]


def test_a_shared_record_contains_no_paths() -> None:
    plain = record(loader=1000, decode=1050)
    of_data = {"subset": "/secret/some.npy", "max_per_class": 9, "root": "/secret/images"}
    cached = replace(plain.settings, cache="/secret/photos\udcff.h5", data_options=of_data)
    plain = replace(plain, settings=cached, chosen=tried("hdf5 of the cache", 9.5, workers=2))
    made = without_paths(replace(plain, verdict=judge(plain, "/secret/photos")))
    text = json.dumps(made.as_dict())
    assert "secret" not in text
    assert "'DATA'" in text
    read = decode_json(text, BenchRecord).settings
    assert read.cache == "photos\\xff.h5"
    assert read.data_options == {"subset": "some.npy", "max_per_class": 9, "root": "images"}


def test_the_call_to_paste_opens_the_same_part_of_the_data() -> None:
    plain = record(loader=1000, decode=1050)
    of_data = {"subset": ":0.5", "max_per_class": 9, "label": "species"}
    settings = replace(plain.settings, cache="photos.h5", data_options=of_data)
    call = judge(replace(plain, settings=replace(settings, cache=None)), "photos.csv").call
    assert all(f"{name}={value!r}" in call for name, value in of_data.items())
    in_place = tried("torch of the cache", 9.5, workers=2)
    chosen = replace(in_place, backend="torch", cached=True)
    call = judge(replace(plain, settings=settings, chosen=chosen), "photos.csv").call
    assert "'photos.h5'" in call
    assert "subset=':0.5'" in call
    assert "species" not in call  # the cache is not a table


def test_the_decode_ceiling_counts_processors_not_workers() -> None:
    ceilings = [Figures(record(decode=1000, workers=workers)).decode_ceiling for workers in (0, 1, 2, 8)]
    assert ceilings == [1000, 1000, 2000, 2000]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_call_is_python_with_the_measured_settings(dtype: str) -> None:
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


@pytest.mark.parametrize(
    ("backend", "cached", "data", "cache"),
    [
        ("hdf5", True, "photos", "photos.h5"),
        ("dali", True, "photos", "photos.h5"),
        ("torch", True, "photos.h5", None),  # torch accepts a cache as its source
        ("torch", False, "photos", None),
        ("dali", False, "photos", None),
    ],
)
def test_the_call_contains_the_cache_only_if_it_is_read(
    backend: str, cached: bool, data: str, cache: str | None
) -> None:
    plain = record(loader=1000, decode=1050)
    choice = replace(tried(f"{backend} of something", 1200.0, workers=3, prefetch=6), cached=cached)
    call = judge(replace(plain, settings=replace(plain.settings, cache="photos.h5"), chosen=choice), "photos").call
    assert f"create_loader(\n    {data!r}, backend={backend!r}," in call
    assert (" cache='photos.h5'," in call) == (cache is not None)
    assert " workers=3," in call
    assert call.endswith(" prefetch=6,\n)")  # not the default of any backend
    assert max(map(len, call.splitlines())) <= 80


def test_gpu_decoding_is_not_compared_with_the_host_ceiling() -> None:
    host = record(loader=4000, model=9000, both=3900, decode=1050, normalise=4100)
    assert judge(host, "photos").limit == "transfer"
    device = judge(replace(host, loader={**host.loader, "decodes_on": "cuda"}), "photos")
    assert device.limit == "loader"
    assert "on the GPU: 4,000 images/s, 1.9 times" in device.sentence


def test_another_backend_is_advised_for_dali_on_a_cpu() -> None:
    host = record(loader=900, model=9000, both=900, decode=1050, normalise=4100)
    without_gpu = judge(replace(host, loader={**host.loader, "decodes_on": "cpu"}), "photos")
    assert without_gpu.limit == "loader"
    assert "900 images/s of 2,100 that simplejpeg could decode here" in without_gpu.sentence
    assert "torch (files) and hdf5 (a cache) are faster" in without_gpu.sentence
    assert "more workers" in judge(host, "photos").sentence


def test_a_decoder_that_the_search_tried_is_not_advised() -> None:
    measured = record(loader=2000, decode=1050, decode_alone=1300, resize=5000, turbojpeg=1155)
    searched = replace(tried(str(measured.loader["backend"]), None), decoder="turbojpeg")
    given = [judge(each, "d").advice or () for each in (measured, replace(measured, candidates=(searched,)))]
    assert ["--decoder turbojpeg" in [advice.what for advice in each] for each in given] == [True, False]
