"""`penstock bench` on a small folder: its measurements and its saved choice."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bench_documents import restored
from command_line import penstock_here
from one_thread import one_thread  # noqa: F401  (an autouse fixture)
from photo_folder import write_folder
from torch import nn

from penstock.bench.commands.bench import _save_choice
from penstock.bench.probe.ceilings.decode import DecodeCeilings, all_decoders
from penstock.bench.probe.ceilings.replay import NUM_BATCHES
from penstock.bench.probe.search import settings_sweep, trials
from penstock.bench.probe.search.candidate import BenchData
from penstock.bench.probe.search.settings_search import given_settings
from penstock.bench.record.bench_record import (
    DECODE,
    LOSSLESS_CACHE,
    NORMALISE,
    READ_COLD,
    READ_MANY,
    READ_WARM,
    REPLAYED,
    RESIZE,
    BenchRecord,
    bf16_name,
    decode_name,
    replayed_model_name,
)
from penstock.bench.record.clock import Rate
from penstock.bench.record.settings import BenchSettings
from penstock.bench.run import run_probes
from penstock.bench.run.benchmark import run_benchmark
from penstock.bench.run.measured_loader import LoaderTurns
from penstock.bench.run.pillow_loader import PillowDataset, baseline_loader
from penstock.bench.run.rounds import Display, OnBegin
from penstock.bench.run.run_probes import RunProbes, Subject
from penstock.bench.run.time_budget import TimeBudget
from penstock.bench.train.step.settings import TrainSettings
from penstock.bench.verdict.judge import without_paths
from penstock.loaders import create_loader, open_source
from penstock.loaders.front.loader import Loader
from penstock.loaders.front.profile import load_profile
from penstock.loaders.system.machine import available_cpus
from penstock.pipelines import LoaderError, imagenet_train


def run(data: Path, settings: BenchSettings, begin: OnBegin = lambda done, total, what: None) -> BenchRecord:
    return run_benchmark(BenchData(data, settings), str(data), settings, display=Display(begin=begin))


def test_a_run_measures_every_part_in_every_round(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_probes, "build_model", lambda *_: nn.Sequential(nn.Flatten(), nn.Linear(3072, 3)))
    settings = BenchSettings(backend="torch", batch_size=8, size=32, workers=0, seconds=0.05, rounds=2, baseline=True)
    asked: list[tuple[int, int]] = []
    record = run(photos, settings, lambda done, total, what: asked.append((done, total)))
    kinds = [measured.kind for measured in record.measured]
    names = {measured.name for measured in record.all_of("ceiling")}
    assert names - {READ_COLD} == {
        *map(decode_name, all_decoders()),
        *(DECODE, RESIZE, READ_WARM, READ_MANY, NORMALISE, LOSSLESS_CACHE, REPLAYED),
        *(replayed_model_name("resnet18"), bf16_name("resnet18")),
    }
    assert (READ_COLD in names) != any(note.startswith(f"{READ_COLD} was left out: ") for note in record.notes)
    assert {"loader", "baseline", "model", "both"} <= set(kinds)
    probes = len(kinds) + (READ_COLD not in names)
    assert asked == [(number, 2 * probes) for number in range(len(asked))]
    for found in (*record.all_of("loader"), *record.all_of("both")):
        resources, time = found.resources, found.workers
        assert resources is not None
        assert time is not None
        assert 0 < resources.cpu_cores <= 2 * available_cpus()
        assert (resources.memory_mb or 0) > 50
        assert 0 < time.busy <= 1
        assert 0 < time.read_share < 1
        assert 0 < time.read_s < time.worker_s
    for measured in record.measured:
        assert len(measured.rounds) == 2
        assert 0 < measured.low <= measured.images_per_s <= measured.high
    assert 0 <= (record.all_of("both")[0].wait_share or 0) <= 1
    document = json.loads(json.dumps(record.as_dict()))
    assert document["settings"]["rounds"] == 2
    assert document["data"]["bytes_an_image"] == open_source(photos).num_bytes // 40  # type: ignore[attr-defined]
    assert document["data"]["fingerprint"] == open_source(photos).fingerprint


def test_loader_reads_cache_and_baseline_reads_files(photos: Path, tmp_path: Path) -> None:
    settings = small(backend="hdf5", cache=str(tmp_path / "photos.h5"), entries=100, workers=0, baseline=True)
    record = run(photos, settings)
    assert record.data["images"] == 100
    assert "HDF5 cache: jpeg, lossless" in str(record.data["summary"])
    assert all(measured.images_per_s > 0 for measured in record.measured)
    assert record.verdict is not None
    assert f"cache={settings.cache!r}" in record.verdict.call
    assert str(tmp_path) not in json.dumps(without_paths(record).as_dict())


def test_without_h5py_the_rest_is_measured(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise LoaderError("E-DEPENDENCY", "the HDF5 cache needs h5py")

    monkeypatch.setattr(run_probes, "build_cache", missing)
    record = run(photos, small(backend="torch", workers=0))
    assert f"{LOSSLESS_CACHE} was left out: the HDF5 cache needs h5py" in record.notes
    assert LOSSLESS_CACHE not in {measured.name for measured in record.measured}
    assert record.rate("loader")


def test_uint8_arrays_have_only_the_resize_ceiling() -> None:
    """They are not read, decoded or cached, and on a CPU delivered without work."""
    arrays = (np.zeros((20, 50, 40, 3), np.uint8), np.arange(20))
    settings = small(backend="torch", workers=0, dtype="uint8", decoder="simplejpeg")
    record = run_benchmark(BenchData(arrays, settings), "arrays", settings)
    assert [measured.name for measured in record.all_of("ceiling")] == [decode_name("simplejpeg"), RESIZE]
    assert record.notes == ()


SHORT = (
    *("--model", "none", "--device", "cpu", "--batch-size", "8", "--size", "32", "--seconds", "0.1", "--rounds", "1"),
    *("--no-apply", "--thorough", "--verbose"),
)


def command(data: Path, written: Path, *arguments: object) -> tuple[str, dict[str, Any]]:
    """The output of a short run of `penstock bench` without a model, joined into one line, and its record."""
    done = penstock_here("bench", data, *SHORT, "--json", written, *arguments, env={"COLUMNS": "150"})
    assert done.returncode == 0, done.stderr
    return " ".join((done.stdout + done.stderr).split()), json.loads(written.read_text())


def save_unless_saved(printed: str, document: dict[str, Any], place: Path) -> None:
    """Check whether the command has saved its choice; save it if other programs kept the machine too busy."""
    is_hindered = "Do not keep the settings" in printed
    assert ("not saved as profile" in printed) == is_hindered
    assert place.exists() == (not is_hindered)
    if is_hindered:
        _save_choice(without_others(restored(document)), str(place))


def without_others(record: BenchRecord) -> BenchRecord:
    """The record of a machine without other programs."""
    return replace(record, measured=tuple(replace(each, resources=None) for each in record.measured))


def test_command_prints_writes_and_saves(photos: Path, tmp_path: Path) -> None:
    saved = tmp_path / "choice.json"
    more = ("--backend", "torch", "--workers", 0, "--dtype", "uint8", "--save", saved)
    printed, document = command(photos, tmp_path / "records" / "bench.json", *more)
    for words in ("images/s", "penstock, torch backend", "create_loader(", saved.name):
        assert words in printed, words
    save_unless_saved(printed, document, saved)
    assert document["verdict"]["limit"] in ("decode", "resize", "cpu", "loader", "storage")
    profile = load_profile(saved)
    assert profile is not None
    assert (profile.workers, profile.cpus) == (0, available_cpus())
    for given, workers in (({}, 0), ({"workers": 1}, 1)):  # arguments override the profile
        with create_loader(photos, backend="auto", profile=saved, batch_size=8, **given) as loader:
            assert loader.describe()["workers"] == workers


def test_dali_is_tuned_and_measured_next_to_the_baseline(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_sweep, "FINAL_TRIALS", 1)
    printed, document = bench_dali(photos, tmp_path, "--baseline", "--save", tmp_path / "p.json")
    tried = [each["options"] for each in document["candidates"]]
    assert {"workers": 1, "readers": 1, "prefetch": 2} in tried
    searched = {knob for knobs in tried for knob, value in knobs.items() if value != tried[0][knob]}
    assert searched == {"readers", "prefetch"}  # --workers was said
    assert all(each["images_per_s"] > 0 for each in document["candidates"])
    chosen = document["chosen"]["options"]
    assert chosen in tried
    rates = {m["name"]: m["images_per_s"] for m in document["measured"] if m["kind"] == "baseline"}
    assert set(rates) == {"torch DataLoader + Pillow"}
    assert min(rates.values()) > 0
    assert document["loader"]["readers"] == chosen["readers"]
    assert any(name.startswith("nvidia-dali") for name in document["environment"]["packages"])
    for words in ("comparing settings of dali first, for at most 60 s (--no-tune", f"readers={chosen['readers']},"):
        assert words in printed
    save_unless_saved(printed, document, tmp_path / "p.json")
    profile = load_profile(tmp_path / "p.json")
    assert profile is not None
    assert (profile.prefetch, profile.options) == (chosen["prefetch"], {"readers": chosen["readers"]})


def about_of(batches: Any) -> dict[str, Any]:
    """The description of a loader, which may be wrapped; for replayed batches, that of the fastest one."""
    about = getattr(getattr(batches, "_batches", batches), "describe", None)
    return {"backend": "hdf5", "prefetch": 3} if about is None else about()


def scripted(monkeypatch: pytest.MonkeyPatch, rate: Callable[[dict[str, Any]], float]) -> None:
    """Makes every measurement of a loader's batches return `rate(the loader's description)`."""

    def measured(loader: Loader, *, seconds: float, device: str) -> Rate:
        return Rate.from_steps([round(rate(about_of(loader)))], [1.0])

    monkeypatch.setattr(run_probes, "loader_rate", measured)
    monkeypatch.setattr(trials, "loader_rate", measured)


def small(**more: Any) -> BenchSettings:
    return BenchSettings(
        **{"batch_size": 8, "size": 32, "seconds": 0.02, "rounds": 1, "model": None, "tune_seconds": 600, **more}
    )


def test_the_resident_batch_is_the_loaders_and_each_round_is_recorded(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random pixels draw more power; an aborted run keeps its finished rounds."""
    trained: list[tuple[TrainSettings, torch.Tensor, torch.Tensor]] = []

    def rate(model: object, settings: TrainSettings, *, batch: tuple[torch.Tensor, torch.Tensor], **_: object) -> Rate:
        trained.append((settings, *batch))
        return Rate(median=5.0, q25=4.0, q75=6.0, windows=1, images=5, seconds=1.0)

    monkeypatch.setattr(run_probes, "resident_batch_rate", rate)
    settings = small(backend="torch", model="resnet18", workers=0, rounds=2, dtype="uint8", compile="default")
    so_far: list[BenchRecord] = []
    run_benchmark(BenchData(photos, settings), "photos", settings, display=Display(recorded=so_far.append))
    with create_loader(photos, pipeline=imagenet_train(32), batch_size=8, workers=0) as loader:
        own = list(islice(loader, NUM_BATCHES))
    assert [used.amp for used, _, _ in trained] == ["off", "bf16"] * 2
    for used, pixels, targets in trained:
        assert used.compile == "default"
        assert any(torch.equal(pixels, images) and torch.equal(targets, labels) for images, labels in own)
    assert [len(record.all_of("loader")[0].rounds) for record in so_far] == [1, 2]


def test_auto_opens_what_the_comparison_chose(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With scripted rates and one worker; the figures of the machine are real."""
    rates = {"hdf5": 1000, "torch": 800, "dali": 300}
    scripted(monkeypatch, lambda about: rates[about["backend"]] * (1.1 if about["prefetch"] == 1 else 1))
    cache, saved = tmp_path / "photos.h5", tmp_path / "p.json"
    record = run(photos, small(cache=str(cache), workers=1, decoder="simplejpeg"))
    assert record.chosen is not None
    assert record.chosen.options == {"workers": 1, "prefetch": 1}
    assert (record.chosen.backend, record.chosen.cached, record.rate("loader")) == ("hdf5", True, 1100)
    others = {measured.name: measured.images_per_s for measured in record.all_of("other")}
    assert others == {"penstock, torch backend": 880}
    assert [tried.backend for tried in record.candidates if "not searched further" in tried.why] == ["dali"]
    assert "HDF5 cache" in str(record.data["summary"])
    assert str(tmp_path) not in json.dumps(without_paths(record).as_dict())
    of_data = {"requests": 256, "shuffle": "blocks"}  # a profile leaves these out: it is for any data
    chosen = replace(record.chosen, options={**record.chosen.options, **of_data})
    _save_choice(without_others(replace(record, chosen=chosen)), str(saved))
    saved_choice = {"backend": "hdf5", "workers": 1, "prefetch": 1, "decoder": "simplejpeg"}
    by_hand = {"workers": 0, "prefetch": 2, "decoder": "pillow"}  # arguments override the profile
    as_processes = {"workers": 1, "prefetch": 1, "start_method": "forkserver"}
    for source, given, expected in (
        (photos, {"cache": cache}, saved_choice),
        (photos, {"cache": cache, **by_hand}, by_hand),
        (cache, {"workers_are": "processes"}, as_processes),
    ):
        with create_loader(source, backend="auto", profile=saved, batch_size=8, **given) as loader:
            about = loader.describe()
        assert {name: about[name] for name in expected} == expected


def test_final_rounds_may_overrule_the_search(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, lambda about: {"hdf5": 1000, "torch": 900}.get(about["backend"], 10))
    settings = small(cache=str(tmp_path / "photos.h5"), workers=0, tune=False)
    loaders = run_probes.loader_rate
    monkeypatch.setattr(  # after the search, torch is faster
        run_probes,
        "loader_rate",
        lambda loader, **more: (
            Rate.from_steps([1100], [1.0]) if about_of(loader).get("backend") == "torch" else loaders(loader, **more)
        ),
    )
    record = run(photos, settings)
    assert (record.loader["backend"], record.rate("loader")) == ("hdf5", 1000)
    assert record.choice.backend == "torch"
    assert record.choice.images_per_s == 1100
    assert any("in the final rounds it had 1.10 times the images/s of hdf5" in note for note in record.notes)
    assert record.verdict is not None
    assert "backend='torch'" in record.verdict.call
    assert "cache=" not in record.verdict.call


def test_loader_that_fails_in_the_final_rounds_is_left_out(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, lambda about: {"hdf5": 1000, "torch": 900}.get(about["backend"], 10))
    searched = run_probes.loader_rate

    def lost(loader: Loader, **more: Any) -> Rate:
        if about_of(loader).get("backend") == "torch":
            raise LoaderError("E-OOM", "killed for memory")
        return searched(loader, **more)

    monkeypatch.setattr(run_probes, "loader_rate", lost)
    record = run(photos, small(cache=str(tmp_path / "photos.h5"), workers=0, tune=False))
    assert (record.choice.backend, record.all_of("other")) == ("hdf5", [])
    assert "penstock, torch backend was left out: killed for memory" in record.notes


def test_real_search_keeps_its_budgets(photos: Path, tmp_path: Path) -> None:
    cache = tmp_path / "photos.h5"
    with create_loader(photos, backend="hdf5", cache=cache, batch_size=8, workers=0):
        pass
    settings = small(max_cpu=8, max_memory=4000, tune_seconds=1, decoder="simplejpeg", dtype="uint8")
    record = run(cache, settings)
    assert "backend torch was left out: DATA is a cache; hdf5 reads it with the same workers" in record.notes
    assert record.choice.cached
    assert record.verdict is not None
    assert "cache=" not in record.verdict.call
    for tried in record.candidates:
        if not tried.why:
            assert 0 <= (tried.cpu_cores or 0) <= 8 * 1.05
            assert 0 < (tried.memory_mb or 0) <= 4000
    with pytest.raises(ValueError, match=r"smallest need: torch .* \d: over budget: \d+ MB, --max-memory is 1$"):
        run(cache, small(backend="torch", max_memory=1, workers=1, decoder="simplejpeg"))
    with pytest.raises(ValueError, match="--no-tune"):
        small(max_cpu=1, tune=False)


def test_dali_reads_a_cache_next_to_the_baseline(photos: Path, tmp_path: Path) -> None:
    cache = tmp_path / "photos.h5"
    bench_dali(photos, tmp_path, "--cache", cache, "--no-tune")
    _, document = bench_dali(cache, tmp_path, "--no-tune", "--baseline")
    assert document["candidates"] == []
    assert document["loader"]["backend"] == "dali"
    assert "HDF5 cache" in document["data"]["summary"]
    assert [m["name"] for m in document["measured"] if m["kind"] == "baseline"] == ["torch DataLoader + Pillow"]
    assert notes_of(document) == []


def test_a_baseline_that_fails_on_a_bad_file_is_left_out(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "photos", 8)  # one batch: even a slow loader reads the bad file
    (folder / "class1" / "0007.jpg").write_bytes(b"not an image")
    given = ("--no-tune", "--baseline", "--entries", 8, "--max-bad", 0.2)
    printed, document = bench_dali(folder, tmp_path, *given)
    ledger = document["ledger"]
    assert ledger["planned"] == ledger["delivered"] + ledger["replaced"]
    assert {(entry["sample"], entry["code"]) for entry in ledger["bad"]} == {(5, "E-FORMAT")}
    assert f"delivered={ledger['delivered']} replaced={ledger['replaced']} repaired=0; bad" in printed
    assert str(folder) not in json.dumps(document)
    (left_out,) = notes_of(document)
    assert left_out.startswith("torch DataLoader + Pillow was left out: ")
    assert "cannot identify image file" in left_out
    assert [m["kind"] for m in document["measured"] if m["kind"] != "ceiling"] == ["loader"]
    assert document["measured"][-1]["images_per_s"] > 0


def notes_of(document: dict[str, Any]) -> list[str]:
    """The notes except the one on storage, which depends on the place of temporary files."""
    return [note for note in document["notes"] if not note.startswith(READ_COLD)]


def bench_dali(data: Path, folder: Path, *arguments: object) -> tuple[str, dict[str, Any]]:
    given = ("--backend", "dali", "--workers", 1, "--decoder", "simplejpeg")
    return command(data, folder / "bench.json", *given, *arguments)


def test_the_baseline_serves_whole_shuffled_batches_like_ours(photos: Path) -> None:
    source = open_source(photos)
    loader = baseline_loader(source, imagenet_train(32), batch_size=8, workers=0, dtype=torch.float32, pin_memory=False)
    batches = list(loader)
    assert [tuple(images.shape) for images, _ in batches] == [(8, 3, 32, 32)] * 5
    assert sorted(int(label) for _, labels in batches for label in labels) == sorted(source.labels(np.arange(40)))
    raw = PillowDataset(source, imagenet_train(32), torch.uint8)
    assert raw[0][0].dtype == torch.uint8
    assert abs(float(batches[0][0].mean())) < 2


@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", torch.bfloat16), ("uint8", torch.float32)])
def test_model_ceiling_takes_the_loaders_dtype(photos: Path, dtype: str, expected: torch.dtype) -> None:
    settings = small(backend="torch", workers=0, model="resnet18", amp="bf16", dtype=dtype)
    data = BenchData(photos, settings)
    ceilings = DecodeCeilings(data.opener.source, data.pipeline, 0)
    found = given_settings(settings, data.opener)
    subject = Subject(data=data, settings=settings, found=found, ceilings=ceilings, budget=TimeBudget())
    with ExitStack() as stack:
        turns = LoaderTurns(data.opener, subject.chosen, stack)
        probes: dict[Any, Any] = RunProbes(subject, turns, stack, []).all()
        images, _ = probes["model", "resnet18 on a resident batch"]._made().keywords["batch"]
    assert images.dtype == expected


def test_too_few_images_for_a_batch_are_reported(photos: Path) -> None:
    with pytest.raises(ValueError, match="--batch-size"):
        BenchData(photos, BenchSettings(batch_size=64))
