"""`penstock parity`: equal engines pass, and any difference of one of them is found and named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from altered_engine import OTHER, Apart, Change, serve_otherwise
from command_line import penstock_here
from odd_images import encoded, scene
from photo_folder import photo, write_folder

from penstock.bench.checks import parity as parity_run
from penstock.bench.checks.parity import ParityEngine, tolerance_between
from penstock.bench.checks.parity_pair import DALI_CPU, DALI_GPU, EXACT, EnginePair, ServedBatch
from penstock.bench.probe.ceilings.decode import all_decoders, usable_decoders
from penstock.loaders import Loader, LoaderError, create_loader, open_source
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.data.cache.format import Encoding
from penstock.pipelines import imagenet_eval

COUNT, BAD = 21, 4
BASE = ("--size", 32, "--batch-size", 8)
NATIVE = [name for name in all_decoders() if name not in usable_decoders()]  # if the library was built
ENGINES = [f"{backend}/{decoder}" for backend in ("torch", "hdf5") for decoder in (*usable_decoders(), *NATIVE)]
NUM_PAIRS = len(ENGINES) * (len(ENGINES) - 1) // 2


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources 0 to 20: JPEGs, one of them truncated, and a PNG."""
    root = write_folder(tmp_path_factory.mktemp("photos"), COUNT - 1)
    (root / "class2" / "x.png").write_bytes(encoded(scene(40, 50), "PNG"))
    (root / "class0" / f"{3 * BAD:04d}.jpg").write_bytes(photo(3 * BAD)[:-200])
    return root


@pytest.fixture(scope="module")
def cache(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cache") / "x.h5"
    build_cache(open_source(photos), path, workers=0)
    return path


class Creation:
    """Records the calls of create_loader, and raises the given errors: backend or decoder -> error."""

    def __init__(self) -> None:
        self.settings: list[dict[str, Any]] = []
        self.errors = {"dali": LoaderError("E-DEPENDENCY", "DALI is not installed", fix="pip install it")}

    def __call__(self, source: Any, **settings: Any) -> Loader:
        for name in (settings["backend"], settings.get("decoder")):
            if name in self.errors:
                raise self.errors[name]
        self.settings.append(settings)
        return create_loader(source, **settings)


@pytest.fixture(autouse=True)
def creation(monkeypatch: pytest.MonkeyPatch) -> Creation:
    """New for each test: DALI is missing unless the test changes that."""
    creation = Creation()
    monkeypatch.setattr(parity_run, "create_loader", creation)
    return creation


class Run:
    """The result of one run of the command."""

    def __init__(self, code: int, output: str, errors: str, written: Path) -> None:
        self.code, self.errors, self.lines = code, errors, output.splitlines()
        self.text = written.read_text() if written.exists() else "{}"
        self.record: dict[str, Any] = json.loads(self.text)
        self.names = [candidate["name"] for candidate in self.record.get("candidates", ())]

    def beginning(self, start: str) -> list[str]:
        return [line for line in self.lines if line.startswith(start)]


@pytest.fixture
def parity(tmp_path: Path) -> Callable[..., Run]:
    """Runs the command in this process."""

    def run(data: Path, *arguments: object) -> Run:
        written = tmp_path / "records" / "parity.json"
        done = penstock_here("parity", data, *BASE, "--json", written, *arguments)
        return Run(done.returncode, done.stdout, done.stderr, written)

    return run


# ---- equal engines ----


def test_equal_engines_pass(photos: Path, parity: Callable[..., Run]) -> None:
    """With a broken file, a PNG and a temporary cache."""
    run = parity(photos)
    assert run.code == 0, run.errors
    assert len(ENGINES) >= 4
    assert run.lines[-1] == f"parity: {len(ENGINES)} engines, {NUM_PAIRS} pairs, all inside the tolerance"
    assert run.beginning("left out: ") == ["left out: dali: DALI is not installed (pip install it)"]
    record = run.record
    assert (record["inside"], record["images_compared"]) == (True, COUNT)
    assert record["data"]["fingerprint"] == open_source(photos).fingerprint
    assert run.names == ENGINES
    assert [f"{c['loader']['backend']}/{c['loader']['decoder']}" for c in record["candidates"]] == ENGINES
    assert len({tuple(pair["engines"]) for pair in record["pairs"]}) == NUM_PAIRS
    for pair in record["pairs"]:
        assert set(pair["equal"].values()) == {True}
        assert set(pair["differing_rows"].values()) == {0}
        assert (pair["pixels"]["max"], pair["pixels"]["worst_image"]) == (0, None)
        assert (pair["tolerance"], pair["outside"]) == ("exact", [])
    assert record["left_out"] == [{"name": "dali", "cause": "DALI is not installed", "fix": "pip install it"}]
    assert str(photos.parent) not in run.text
    assert "/" not in json.dumps(record["data"])


def test_evaluation_compares_the_whole_data_set_as_one_rank(
    photos: Path, cache: Path, parity: Callable[..., Run], creation: Creation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    run = parity(photos, "--eval", "--cache", cache, "--batch-size", 500)
    assert run.code == 0, run.errors
    assert run.record["images_compared"] == COUNT - 1  # the row of the broken file is padding
    assert run.names == ENGINES
    asked = {(settings["pipeline"], settings["batch_size"]) for settings in creation.settings}
    assert asked == {(imagenet_eval(32), COUNT)}


# ---- what differs ----


ROW = "in 1 row, first at step 1, row 2$"
SOME = r"differs? in 1 row, first at step \d, row \d$"
CHANGES = {
    "one level": (Change(images=1), {}, r": mean distance 0\.0476 is above 0; 99\.9th percentile 1 is above 0$"),
    "order": (Change(index=1), {"order": 1}, f"order differs {ROW}"),
    "step": (Change(step=7), {"order": 8}, r"order differs in 8 rows, first at step \d, row 0$"),
    "labels": (Change(labels=4), {"labels": 1}, f"labels differ {ROW}"),
    "window": (Change(windows=1), {"crops": 1}, f"crops differ {ROW}"),
    "flip": (Change(flips=True), {"crops": 1}, f"crops differ {ROW}"),
    "code": (Change(of_ledger={"code": "E-EOI"}), {"ledger": 1}, f"ledger {SOME}"),
    "substitute": (Change(of_ledger={"substitute": 0}), {"ledger": 1}, f"ledger {SOME}"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_difference_of_one_engine_is_named(
    photos: Path, cache: Path, parity: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    change, differing, words = CHANGES[name]
    serve_otherwise(monkeypatch, change)
    run = parity(photos, "--cache", cache)
    assert (run.code, run.record["inside"]) == (3, False), run.errors
    outside = [pair for pair in run.record["pairs"] if pair["outside"]]
    assert [pair["engines"] for pair in outside] == [p["engines"] for p in run.record["pairs"] if OTHER in p["engines"]]
    for pair in outside:
        assert {what: count for what, count in pair["differing_rows"].items() if count} == differing
        assert pair["pixels"]["max"] == (name == "one level")
    lines = run.beginning("outside: ")
    assert len(lines) == len(ENGINES) - 1
    for line in lines:
        assert OTHER in line
        assert re.search(words, line), line
    total = f"parity: {len(ENGINES)} engines, {NUM_PAIRS} pairs, {len(lines)} outside the tolerance"
    assert run.lines[-1] == f"{total}, each with {OTHER}"


def test_the_worst_image_is_named(
    photos: Path, cache: Path, parity: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_otherwise(monkeypatch, Change(images=1))
    run = parity(photos, "--cache", cache, "--seed", 3)
    worst = {pair["pixels"]["worst_image"] for pair in run.record["pairs"] if OTHER in pair["engines"]}
    with create_loader(
        photos, backend="torch", batch_size=8, seed=3, workers=0, drop_last=False, on_bad_sample="replace"
    ) as loader:
        batches = loader.batches()
        next(batches)
        assert worst == {int(next(batches).index[2])}
    altered = [pair["pixels"] for pair in run.record["pairs"] if OTHER in pair["engines"]]
    assert all(pixels["worst_image_mean"] == 1.0 for pixels in altered)
    assert all(pixels["mean"] == pytest.approx(1 / COUNT) for pixels in altered)


def test_rows_beyond_the_requested_images_are_not_compared(
    photos: Path, cache: Path, parity: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_otherwise(monkeypatch, Change(images=1, labels=4, index=1))
    assert parity(photos, "--cache", cache, "--images", 10).code == 0
    run = parity(photos, "--cache", cache, "--images", 11)
    assert (run.code, run.record["images_compared"]) == (3, 11)


# ---- distances and tolerances ----


def test_distances_equal_numpys() -> None:
    rng = np.random.default_rng(5)
    first = rng.integers(0, 256, (7, 13, 11, 3), dtype=np.uint8)
    second = np.clip(first.astype(int) + rng.integers(-9, 10, first.shape), 0, 255).astype(np.uint8)
    second[3], second[5] = first[3], 255 - first[5]
    pair, rows = EnginePair("a", "b", EXACT), np.zeros((7, 4), np.int32)
    served = [
        ServedBatch((0, 0), np.arange(100, 107), rows[:, 0], rows, rows[:, 0] > 0, pixels, {})
        for pixels in (first, second)
    ]
    pair.add(*served)
    levels = np.abs(first.astype(int) - second.astype(int))
    assert pair.distances() == {
        "mean": pytest.approx(levels.mean(), rel=1e-12),
        "p99_9": np.quantile(levels, 0.999, method="inverted_cdf"),
        "max": levels.max(),
        "worst_image": 105,
        "worst_image_mean": pytest.approx(levels[5].mean(), rel=1e-12),
    }


def test_each_kind_of_pair_has_its_tolerance(photos: Path) -> None:
    source = open_source(photos)

    def candidate(backend: str, device: str = "cpu") -> ParityEngine:
        return ParityEngine(name="x", needs="x", source=source, backend=backend, device=device, options={})

    own, dali, gpu = candidate("torch"), candidate("dali"), candidate("dali", "cuda")
    assert tolerance_between(own, candidate("hdf5")) is EXACT
    assert {tolerance_between(own, dali), tolerance_between(dali, own), tolerance_between(dali, dali)} == {DALI_CPU}
    assert {tolerance_between(*pair) for pair in ((own, gpu), (gpu, own), (gpu, dali), (gpu, gpu))} == {DALI_GPU}
    assert (EXACT.mean, EXACT.p99_9) == (0, 0)
    assert (DALI_CPU.mean, DALI_CPU.p99_9, DALI_GPU.mean, DALI_GPU.p99_9) == (1, 2, 2, 16)


@pytest.mark.parametrize(("apart", "rows", "inside"), [(1, 21, True), (3, 1, False), (2, 21, False)])
def test_dali_may_be_a_level_apart(
    photos: Path, cache: Path, parity: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, apart, rows, inside
) -> None:
    """The mean and the percentile are each sufficient; all other pairs stay exact."""
    whole, found = ParityEngine.open, parity_run.engines_for

    def open_apart(self: ParityEngine, settings: Any) -> Any:
        loader = whole(replace(self, backend="torch") if self.backend == "dali" else self, settings)
        return Apart(loader, apart, rows) if self.backend == "dali" else loader

    def fewer(*sources: Any) -> Any:
        return [each for each in found(*sources) if each.name in ("torch/simplejpeg", OTHER, "dali/files/cpu")]

    monkeypatch.setattr(ParityEngine, "open", open_apart)
    monkeypatch.setattr(parity_run, "engines_for", fewer)
    run = parity(photos, "--cache", cache)
    assert run.code == (0 if inside else 3), run.errors
    judged = [(pair["tolerance"], not pair["outside"]) for pair in run.record["pairs"]]
    assert judged == [("exact", True), (DALI_CPU.name, inside), (DALI_CPU.name, inside)]
    assert any(f"{DALI_CPU.name}: mean 1, 99.9 % 2" in line for line in run.lines)


@pytest.mark.parametrize("evaluate", [(), ("--eval",)], ids=["train", "eval"])
def test_real_dali_is_within_the_tolerance(
    photos: Path, cache: Path, parity: Callable[..., Run], creation: Creation, evaluate: tuple[str, ...]
) -> None:
    """The real DALI, from files and from the cache, with the same pixels."""
    creation.errors.clear()
    run = parity(photos, "--cache", cache, *evaluate)
    assert run.code == 0, run.errors
    assert run.names == [*ENGINES, "dali/files/cpu", "dali/cache/cpu"]
    pixels = {tuple(pair["engines"]): pair["pixels"] for pair in run.record["pairs"]}
    assert pixels["dali/files/cpu", "dali/cache/cpu"]["max"] == 0
    assert 0 < pixels["torch/simplejpeg", "dali/files/cpu"]["mean"] < 0.5


# ---- what is left out ----


def test_a_large_source_without_a_cache_leaves_hdf5_out(
    photos: Path, parity: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity_run, "MOST_CACHED", COUNT - 1)
    run = parity(photos)
    assert run.code == 0, run.errors
    assert run.names == [name for name in ENGINES if name.startswith("torch/")]
    (line, _) = run.beginning("left out: ")
    assert line.startswith("left out: hdf5: a temporary cache is built for up to ")
    assert "--cache FILE.h5" in line
    run = parity(photos, "--cache", tmp_path / "new.h5")
    assert run.code == 0, run.errors
    assert run.names == ENGINES
    assert (tmp_path / "new.h5").is_file()


def test_engines_with_a_missing_package_are_left_out(
    photos: Path, cache: Path, parity: Callable[..., Run], creation: Creation
) -> None:
    creation.errors["pillow"] = LoaderError("E-DEPENDENCY", "Pillow is not installed", fix="pip install pillow")
    run = parity(photos, "--cache", cache)
    assert run.code == 0, run.errors
    assert run.names == [name for name in ENGINES if not name.endswith("/pillow")]
    assert run.beginning("left out: ")[0] == "left out: pillow: Pillow is not installed (pip install pillow)"
    assert len(run.beginning("left out: ")) == 2


def test_another_error_of_an_engine_is_raised(
    photos: Path, cache: Path, parity: Callable[..., Run], creation: Creation
) -> None:
    creation.errors["dali"] = LoaderError("E-MEM", "out of memory")
    run = parity(photos, "--cache", cache)
    assert (run.code, run.lines, run.record) == (7, [], {})
    assert run.errors.startswith("LoaderError[E-MEM]")


def test_a_single_engine_exits_with_2(
    photos: Path, parity: Callable[..., Run], creation: Creation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity_run, "MOST_CACHED", 0)
    for name in ("native", "turbojpeg", "pillow"):
        creation.errors[name] = LoaderError("E-DEPENDENCY", f"no {name}", fix=f"get {name}")
    run = parity(photos)
    assert (run.code, run.lines, run.errors.count("\n")) == (2, [], 1)
    assert re.match(r"LoaderError\[E-MISUSE\].*--cache FILE\.h5.*get turbojpeg.*get pillow", run.errors), run.errors


def test_a_lossy_cache_is_refused_unless_it_is_the_data(
    photos: Path, parity: Callable[..., Run], tmp_path: Path
) -> None:
    path = tmp_path / "small.h5"
    build_cache(open_source(photos), path, Encoding(kind="raw", resize=32), workers=0)
    run = parity(photos, "--cache", path)
    assert (run.code, run.errors.count("\n")) == (2, 1)
    assert "is not lossless (raw, lossy: shorter side 32)" in run.errors
    assert parity(path, "--images", 8).code == 0
