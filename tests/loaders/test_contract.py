"""The contract of a loader on every backend: written once; a new backend is one line in BACKENDS."""

from __future__ import annotations

import gc
import itertools
import json
import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from photo_folder import photo, write_folder
from served_steps import Pixels, Row, Step, as_step, join, serve_steps

from penstock.loaders import LoaderError, create_loader
from penstock.loaders.front.batch import Batch
from penstock.loaders.front.loader import Loader
from penstock.pipelines import imagenet_eval, imagenet_train
from penstock.pipelines.native.library import native_library

# name of a case -> (backend, options that change who does the work but not the stream). Together they pair each backend
# with each decoder and each kind of workers, and each kind of workers with each decoder.
PYTHON = {"decoder": "simplejpeg"}  # an explicit decoder decodes all images, and the native library none
NATIVE = {"decoder": "native"}
PROCESSES, THREADS = {"workers": 2, "workers_are": "processes"}, {"workers": 2, "workers_are": "threads"}
BACKENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "torch, in the process": ("torch", {"workers": 0, **PYTHON}),
    "torch, in the process, native": ("torch", {"workers": 0, **NATIVE}),
    "torch, 2 processes": ("torch", {**PROCESSES, **PYTHON}),
    "torch, 2 threads, native": ("torch", {**THREADS, **NATIVE}),
    "hdf5, in the process": ("hdf5", {"workers": 0, **NATIVE}),
    "hdf5, 2 threads": ("hdf5", {**THREADS, **PYTHON}),
    "dali, in the process": ("dali", {"workers": 0, **PYTHON}),
    "dali, 2 threads, native": ("dali", {"workers": 2, "readers": 2, **NATIVE}),
    "hdf5, 2 processes, native": ("hdf5", {**PROCESSES, **NATIVE}),
}
# Their engines are covered by the other cases, so contracts of pixels and samples are tested on those only.
SAME_ENGINES = ("torch, in the process", "hdf5, 2 threads", "hdf5, 2 processes, native")
NUM_PHOTOS = 61
SIZE = 32


def settings_of(case: str) -> dict[str, Any]:
    name, options = BACKENDS[case]
    if options.get("decoder") == "native" and native_library() is None:
        pytest.skip("the native library was not built here")
    return {"backend": name, **options}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> dict[str, Any]:
    return settings_of(request.param)


@pytest.fixture(params=[case for case in BACKENDS if case not in SAME_ENGINES])
def engine(request: pytest.FixtureRequest) -> dict[str, Any]:
    return settings_of(request.param)


def open_loader(source: Any, *, evaluate: bool = False, **settings: Any) -> Loader:
    defaults = {
        "pipeline": imagenet_eval(SIZE) if evaluate else imagenet_train(SIZE),
        "batch_size": 12,
        "dtype": torch.uint8,
        "seed": 7,
        "workers": 0,
    }
    if settings.get("backend") == "hdf5" and isinstance(source, Path):
        settings.setdefault("cache", source.with_name(f"{source.name}.h5"))
    return create_loader(source, **{**defaults, **settings})


def record(batch: Batch, loader: Loader) -> Step:
    return as_step(batch, rounds=loader.describe()["backend"] == "dali")


def serve(loader: Loader, epochs: int) -> list[Step]:
    return serve_steps(loader, epochs, rounds=loader.describe()["backend"] == "dali")


@pytest.fixture(scope="module")
def reference(photos: Path) -> list[Step]:
    """Two epochs of the stream that every loader over `photos` must serve."""
    with open_loader(photos, **PYTHON) as loader:
        return serve(loader, 2)


# ---- one stream ----


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 1, "prefetch": 1},
        {"workers": 4, "prefetch": 2},
        {"workers": 1, "start_method": "spawn"},
        {"workers": 2, "start_method": "fork"},
        {"workers": 0, "decoder": "turbojpeg"},
        {"workers": 0, "decoder": "pillow"},
    ],
    ids=str,
)
def test_no_option_of_the_torch_backend_changes_the_stream(
    photos: Path, options: dict[str, Any], reference: list[Step]
) -> None:
    with open_loader(photos, **options) as loader:
        assert serve(loader, 2) == reference


def test_a_seed_and_an_epoch_change_order_crops_and_flips(photos: Path, reference: list[Step]) -> None:
    with open_loader(photos, seed=8) as loader:
        other = serve(loader, 1)
    first, second = ([step for step in reference if step.epoch == epoch] for epoch in range(2))
    for two in (second, other):
        assert [row.index for row in rows_of(first)] != [row.index for row in rows_of(two)]
        windows = [{row.index: row.window for row in rows_of(run)} for run in (first, two)]
        common = windows[0].keys() & windows[1].keys()
        assert sum(windows[0][k] == windows[1][k] for k in common) < len(common) / 4


def rows_of(steps: list[Step]) -> list[Row]:
    return [row for step in steps for row in step.rows]


def test_an_epoch_serves_each_sample_at_most_once_with_its_label(photos: Path, reference: list[Step]) -> None:
    names = sorted(os.fsencode(p.relative_to(photos)) for p in photos.rglob("*.jpg"))
    for epoch in (0, 1):
        rows = rows_of([step for step in reference if step.epoch == epoch])
        assert len({row.index for row in rows}) == len(rows) == NUM_PHOTOS // 12 * 12
        assert all(names[row.index].startswith(b"class%d" % row.label) for row in rows)


def test_a_batch_unpacks_and_names_its_samples(photos: Path, backend: dict[str, Any]) -> None:
    names = sorted(str(path.relative_to(photos)) for path in photos.rglob("*.jpg"))
    with open_loader(photos, evaluate=True, batch_size=40, pad=True, with_index=True, **backend) as loader:
        for batch in loader:
            images, labels, index = batch
            assert (images, labels, index) == (batch.images, batch["labels"], batch[2])
            assert batch.names == [names[number] if number >= 0 else "" for number in index.tolist()]
            again = pickle.loads(pickle.dumps(batch.to("cpu")))
            assert (again.names, record(again, loader)) == (batch.names, record(batch, loader))


def test_a_picture_does_not_move_the_loader(photos: Path, backend: dict[str, Any], reference: list[Step]) -> None:
    with open_loader(photos, **backend) as loader:
        fresh = loader.state_dict()
        pictures = [loader.show(13)]
        assert loader.state_dict() == fresh
        stream = loader.batches()
        served = [record(next(stream), loader) for _ in range(2)]
        middle, before = loader.state_dict(), loader.stats()
        pictures.append(loader.show(5))
        assert loader.state_dict() == middle
        assert loader.stats() == before
        assert served + [record(batch, loader) for batch in stream] == reference[: len(loader)]
        loader.load_state_dict(fresh)
        pictures.append(loader.show(1))
    rows = rows_of(reference)
    for picture, first in zip(pictures, (0, 24, 0), strict=True):
        for tile, row in zip(picture.tiles, rows[first:], strict=False):
            shown = Pixels(torch.from_numpy(tile.views[0].image).permute(2, 0, 1), rounds=True)
            assert (shown, tile.lines[0]) == (row.pixels[0], f"class{row.label}")


# ---- elastic order ----


@pytest.mark.parametrize("world_size", [2, 3, 4, 6])
def test_a_step_has_the_same_samples_for_every_world_size(photos: Path, world_size: int, reference: list[Step]) -> None:
    """Two ranks on every backend, with augmentations, are tested below."""
    ranks = []
    for rank in range(world_size):
        settings = {**NATIVE, "batch_size": 12 // world_size, "rank": rank, "world_size": world_size}
        with open_loader(photos, **settings) as loader:
            ranks.append(serve(loader, 2))
            assert len(loader) == NUM_PHOTOS // 12
    assert join(ranks) == reference


# ---- resume ----


def serve_with_states(loader: Loader) -> tuple[list[Step], list[dict[str, Any]]]:
    """Return two epochs, and the states before each batch and after the last."""
    served, states = [], [json.loads(json.dumps(loader.state_dict()))]
    for batch in itertools.chain.from_iterable(loader.batches() for _ in range(2)):
        served.append(record(batch, loader))
        states.append(json.loads(json.dumps(loader.state_dict())))
    return served, states


@pytest.fixture(scope="module")
def states(photos: Path) -> list[dict[str, Any]]:
    """The states of every loader over `photos`; they count delivered batches, not those made ahead."""
    with open_loader(photos, **PYTHON) as loader:
        found = serve_with_states(loader)[1]
        places = [(state["epoch"], state["position"]) for state in found]
        assert places == [*((epoch, 12 * step) for epoch in range(2) for step in range(len(loader))), (2, 0)]
    return found


def test_stream_and_states_are_the_same_on_every_backend(
    photos: Path, backend: dict[str, Any], reference: list[Step], states: list[dict[str, Any]]
) -> None:
    with open_loader(photos, **backend) as loader:
        assert serve_with_states(loader) == (reference, states)


def test_resume_at_every_boundary_continues_exactly(
    photos: Path, reference: list[Step], states: list[dict[str, Any]]
) -> None:
    for stop, state in enumerate(states):
        # with another number of workers, and in the second half on two ranks
        world_size = 2 if stop % 2 else 1
        tails = []
        for rank in range(world_size):
            place = {"rank": rank, "world_size": world_size, "batch_size": 12 // world_size}
            with open_loader(photos, workers=1 if stop % 4 == 0 else 0, **place) as loader:
                loader.load_state_dict(state)
                tails.append(serve(loader, 2))
        assert join(tails) == reference[stop:], stop


def test_a_resume_of_a_resume_continues_exactly(photos: Path, engine: dict[str, Any], reference: list[Step]) -> None:
    served: list[Step] = []
    state = None
    while len(served) < len(reference):
        with open_loader(photos, **engine) as loader:
            if state is not None:
                loader.load_state_dict(state)
                assert loader.state_dict() == state
            served += [record(batch, loader) for batch in itertools.islice(loader.batches(), 3)]
            state = loader.state_dict()
    assert served == reference


def test_a_state_is_small_and_json(photos: Path) -> None:
    with open_loader(photos) as loader:
        next(loader.batches())
        assert len(json.dumps(loader.state_dict())) < 1200


# ---- augmentations ----

PIXELS = {"auto_augment": "rand", "rand_magnitude": 15, "color_jitter": (0.4, 0.4, 0.4, 0.1), "erasing": 0.3}
# DALI's pixels differ by one level, which equalize, solarize, posterize and hue may amplify without limit. For DALI,
# only operations that keep small distances small are compared, and the soft targets, which contain the whole plan of
# mixing. The random draws never depend on a backend: they come from seed, epoch and indices before any engine.
GENTLE = {"color_jitter": (0.2, 0.2, 0.2, 0.0), "erasing": 0.3}
RECIPES: dict[str, dict[str, Any]] = {
    "pixels": PIXELS,
    "gentle": GENTLE,
    "mixed": {**PIXELS, "mixup": 0.4, "cutmix": 1.0},
}


@pytest.fixture(scope="module")
def augmented(photos: Path) -> dict[str, list[Step]]:
    """For each recipe, the stream that every loader must serve."""
    streams = {}
    for name in RECIPES:
        with open_loader(photos, **recipe_settings(name)) as loader:
            streams[name] = serve(loader, 2)
    return streams


def recipe_settings(name: str) -> dict[str, Any]:
    dtype = torch.float32 if name == "mixed" else torch.uint8
    return {"pipeline": imagenet_train(SIZE, **RECIPES[name]), "dtype": dtype}


def without_pixels(steps: list[Step]) -> list[Step]:
    return [step._replace(rows=[row._replace(pixels=()) for row in step.rows]) for step in steps]


def test_augmentations_are_the_same_on_every_backend_for_two_ranks_and_after_a_resume(
    photos: Path, engine: dict[str, Any], augmented: dict[str, list[Step]], reference: list[Step]
) -> None:
    dali = engine["backend"] == "dali"
    name = "gentle" if dali else "pixels"
    assert without_pixels(augmented[name]) == without_pixels(reference)  # crops and flips are unchanged
    assert not any(one == two for one, two in zip(augmented[name], reference, strict=True))
    for recipe, compared in ((name, list), ("mixed", without_pixels if dali else list)):
        settings = {**recipe_settings(recipe), **engine}
        with open_loader(photos, **settings) as loader:
            head = [record(batch, loader) for batch in itertools.islice(loader.batches(), 2)]
            state = json.loads(json.dumps(loader.state_dict()))
        ranks = []
        for rank in range(2):
            with open_loader(photos, **settings, batch_size=6, rank=rank, world_size=2) as loader:
                loader.load_state_dict(state)
                ranks.append(serve(loader, 2))
        assert compared(head + join(ranks)) == compared(augmented[recipe])


def test_the_seed_of_the_loader_seeds_its_augmentations(photos: Path) -> None:
    """Without crops, flips and shuffling, the seed affects only the mixing."""
    still = {"crop": "center", "flip": 0.0, "mixup": 1.0}
    settings = {"pipeline": imagenet_train(SIZE, **still), "dtype": torch.float32, "shuffle": False, "drop_last": True}
    streams = []
    for seed in (7, 8, 7):
        with open_loader(photos, seed=seed, **settings) as loader:
            streams.append([[row.pixels for row in step.rows] for step in serve(loader, 2)])
    assert streams[0] == streams[2]
    first, second = streams[0][:5], streams[0][5:]
    for one, two in ((streams[0], streams[1]), (first, second)):
        assert not any(a == b for a, b in zip(one, two, strict=True))


def test_mixing_gives_soft_targets_of_both_labels_and_leaves_padding_alone(photos: Path) -> None:
    settings = {"drop_last": False, "pad": True}
    mixed = {"pipeline": imagenet_train(SIZE, mixup=1.0), "dtype": torch.float32}
    with (
        open_loader(photos, **mixed, **settings) as loader,
        open_loader(photos, **settings) as hard,
        open_loader(photos, **mixed, drop_last=False) as short,
    ):
        assert (loader.describe()["augmentations"], "augmentations" in hard.describe()) == ("torch", False)
        for soft, plain, unpadded in zip(loader.batches(), hard.batches(), short.batches(), strict=True):
            labels = plain.labels
            assert torch.equal(unpadded.labels, soft.labels[labels >= 0])
            assert torch.equal(unpadded.images, soft.images[labels >= 0])
            assert soft.labels.dtype == torch.float32
            assert soft.labels.sum(1).tolist() == pytest.approx((labels >= 0).double().tolist())
            for row, label in enumerate(labels.tolist()):
                partner = int(labels[row ^ 1])
                if label >= 0:
                    others = [c for c in range(soft.labels.shape[1]) if c not in (label, partner)]
                    assert soft.labels[row, label] > 0
                    assert not soft.labels[row, others].any()
                    assert partner >= 0 or soft.labels[row, label] == 1
        assert (labels < 0).sum() == 11  # it is the partner of the last row that is not padding


# ---- exact evaluation ----


# Fewer samples than ranks, an empty last batch of a rank, a last batch on some ranks only, only full batches.
@pytest.mark.parametrize(("count", "world_size"), [(1, 1), (1, 3), (13, 2), (13, 3), (60, 5)])
@pytest.mark.parametrize("pad", [True, False])
def test_evaluation_serves_every_sample_once_in_equal_steps_or_unpadded(world_size: int, count: int, pad: bool) -> None:
    images = np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(count) % 5
    settings = {"evaluate": True, "batch_size": 4, "world_size": world_size, "pad": pad}
    seen, steps = [], set()
    for rank in range(world_size):
        with open_loader((images, labels), rank=rank, **settings) as loader:
            epochs = [list(loader.batches()) for _ in range(2)]
            assert [len(batches) for batches in epochs] == [len(loader)] * 2
            assert loader.state_dict() == {**loader.state_dict(), "epoch": 2, "position": 0}
        batches = epochs[1]
        steps.add(len(batches))
        sizes = [len(batch.index) for batch in batches]
        assert sizes[:-1] == [4] * len(sizes[:-1])
        assert pad or all((batch.index >= 0).all() for batch in batches)
        assert not pad or sizes == [4] * len(sizes)
        for batch in batches:
            assert batch.epoch == 1
            padding = batch.index < 0
            assert (batch.labels.numpy()[padding] == -1).all()
            assert (batch.labels.numpy()[~padding] == labels[batch.index[~padding]]).all()
            assert not batch.images.numpy()[padding].any()
            seen += batch.index[~padding].tolist()
    assert len(steps) == 1 or not pad
    assert sorted(seen) == list(range(count))


def test_evaluation_is_the_same_each_epoch_and_on_every_backend(photos: Path, engine: dict[str, Any]) -> None:
    with open_loader(photos, evaluate=True, **engine) as loader:
        first, second = ([record(b, loader) for b in loader.batches()] for _ in range(2))
    assert [step._replace(epoch=1) for step in first] == second
    assert [row.index for row in rows_of(first)] == list(range(NUM_PHOTOS))


def test_the_last_batch_is_short_or_padded_with_label_minus_one(photos: Path, engine: dict[str, Any]) -> None:
    memory_format = torch.contiguous_format if engine["workers"] else torch.channels_last
    settings = {"evaluate": True, "dtype": torch.float32, "batch_size": 16, "memory_format": memory_format, **engine}
    with open_loader(photos, **settings) as short, open_loader(photos, pad=True, **settings) as full:
        pairs = list(zip(short.batches(), full.batches(), strict=True))
    assert [len(batch.labels) for batch, _ in pairs] == [16, 16, 16, 13]
    for batch, padded in pairs:
        rows = len(batch.labels)
        assert batch.images.is_contiguous(memory_format=memory_format)
        logits = batch.images.flatten(1)[:, :8]
        assert torch.nn.functional.cross_entropy(logits, batch.labels).isfinite()  # -1 is outside its range
        assert torch.equal(batch.images, padded.images[:rows])
        for name in ("index", "windows", "flips", "labels"):
            assert (getattr(batch, name) == getattr(padded, name)[:rows]).all()
        assert (padded.labels[rows:] == -1).all()


# ---- nothing silent ----


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    root = write_folder(tmp_path_factory.mktemp("damaged"), NUM_PHOTOS, classes=1)
    bad = [3, 4, 5, 17, 40, 60]
    for number in bad:
        path = root / "class0" / f"{number:04d}.jpg"
        path.write_bytes((b"", b"<html>", photo(number)[:-2], photo(number)[:200])[number % 4])
    return root, bad


def test_raise_names_the_first_bad_sample_in_order(damaged: tuple[Path, list[int]], backend: dict[str, Any]) -> None:
    root, bad = damaged
    with open_loader(root, shuffle=False, batch_size=16, **backend) as loader, pytest.raises(LoaderError) as caught:
        list(loader)
    assert caught.value.sample == bad[0]
    assert caught.value.exit_code == 3
    assert str(root).encode() in (caught.value.path or b"")  # type: ignore[operator]
    assert f"backend={backend['backend']} rank=0" in str(caught.value)


def test_the_batches_before_a_bad_sample_are_served(damaged: tuple[Path, list[int]], engine: dict[str, Any]) -> None:
    root, _ = damaged
    with open_loader(root, shuffle=False, batch_size=3, **engine) as loader:
        stream = loader.batches()
        assert next(stream).index.tolist() == [0, 1, 2]
        state = loader.state_dict()
        with pytest.raises(LoaderError):
            next(stream)
        assert loader.state_dict() == state
        loader.load_state_dict({**state, "position": 6})
        assert next(loader.batches()).index.tolist() == [6, 7, 8]  # the loader still serves the good samples


def test_replace_keeps_batches_full_and_the_ledger_correct(
    damaged: tuple[Path, list[int]], backend: dict[str, Any]
) -> None:
    root, bad = damaged
    with open_loader(root, on_bad_sample="replace", shuffle=False, batch_size=1, drop_last=True, **backend) as loader:
        batches = list(loader.batches())
        served = [int(batch.index[0]) for batch in batches]
        expected = list(range(NUM_PHOTOS))
        for number in bad:
            substitutes = itertools.chain(range(number + 1, NUM_PHOTOS), range(number))
            expected[number] = next(i for i in substitutes if i not in bad)
        assert served == expected
        ledger = loader.ledger()
    assert (ledger.planned, ledger.delivered, ledger.replaced) == (NUM_PHOTOS, NUM_PHOTOS - len(bad), len(bad))
    assert [(b.sample, b.substitute) for b in ledger.bad] == [(n, expected[n]) for n in bad]
    assert {b.code for b in ledger.bad} <= {"E-EMPTY", "E-FORMAT", "E-EOI", "E-TRUNC"}
    with open_loader(root, on_bad_sample="replace", shuffle=False, batch_size=NUM_PHOTOS, **backend) as loader:
        (whole,) = serve(loader, 1)
        assert whole.rows == rows_of([record(batch, loader) for batch in batches])


def test_evaluation_skips_or_pads_bad_samples(damaged: tuple[Path, list[int]], engine: dict[str, Any]) -> None:
    root, bad = damaged
    served = []
    # A batch with only one bad sample comes last: without padding it disappears.
    for pad, sizes in ((None, [9, 11, 12, 11, 12]), (True, [12] * 6)):
        with open_loader(root, evaluate=True, on_bad_sample="replace", pad=pad, **engine) as loader:
            batches = list(loader.batches())
            ledger = loader.ledger()
        assert [len(batch.labels) for batch in batches] == sizes
        assert all(batch.images.is_contiguous(memory_format=torch.channels_last) for batch in batches)
        images, labels = (torch.cat([getattr(b, name) for b in batches]) for name in ("images", "labels"))
        index, windows = (np.concatenate([getattr(b, name) for b in batches]) for name in ("index", "windows"))
        good = index >= 0
        assert index[good].tolist() == [i for i in range(NUM_PHOTOS) if i not in bad]
        assert (ledger.planned, ledger.delivered, ledger.replaced) == (NUM_PHOTOS, NUM_PHOTOS - len(bad), len(bad))
        served.append((images[good].numpy(), labels[good].numpy(), windows[good]))
    assert all(np.array_equal(short, padded) for short, padded in zip(*served, strict=True))


@pytest.mark.parametrize("max_bad", [5, 0.08])
def test_too_many_bad_samples_end_the_epoch(damaged: tuple[Path, list[int]], max_bad: float) -> None:
    root, _ = damaged
    settings = {"on_bad_sample": "replace", "shuffle": False, "drop_last": False}
    with open_loader(root, max_bad=max_bad, **settings) as loader, pytest.raises(LoaderError) as caught:
        list(loader)
    assert (caught.value.code, caught.value.sample) == ("E-MAXBAD", 60 if max_bad == 5 else 40)
    assert "max_bad" in caught.value.fix
    with open_loader(root, max_bad=6, **settings) as loader:
        assert len(list(loader)) == len(loader)


@pytest.mark.filterwarnings("ignore:the data has no labels")
def test_a_data_set_without_a_good_sample_is_reported(tmp_path: Path, engine: dict[str, Any]) -> None:
    for number in range(12):
        (tmp_path / f"{number}.jpg").write_bytes(b"not an image at all")
    with (
        open_loader(tmp_path, on_bad_sample="replace", **engine) as loader,
        pytest.raises(LoaderError, match="E-MAXBAD"),
    ):
        list(loader)


# ---- the iterator ----


def test_an_epoch_left_after_its_first_batch_is_over(
    photos: Path, engine: dict[str, Any], reference: list[Step]
) -> None:
    first, second = ([step for step in reference if step.epoch == epoch] for epoch in range(2))
    with open_loader(photos, **engine) as loader:
        state = [loader.state_dict() for _ in zip(range(2), loader, strict=False)][-1]
        next(iter(loader))
        assert [record(batch, loader) for batch in loader.batches()] == second
        loader.load_state_dict(state)
        next(iter(loader))
        assert [record(batch, loader) for batch in loader.batches()] == first[2:]
        assert loader.ledger(0).planned == len(rows_of(first))


def test_set_epoch_chooses_the_epoch_and_keeps_a_resumed_place(
    photos: Path, engine: dict[str, Any], reference: list[Step]
) -> None:
    with open_loader(photos, **engine) as loader:
        loader.set_epoch(1)
        assert [record(b, loader) for b in loader.batches()] == [step for step in reference if step.epoch == 1]
        loader.set_epoch(0)
        assert record(next(loader.batches()), loader) == reference[0]
        state = loader.state_dict()
        loader.load_state_dict(state)
        loader.set_epoch(0)
        assert record(next(loader.batches()), loader) == reference[1]
        loader.set_epoch(0)  # during an epoch: it starts again
        assert record(next(loader.batches()), loader) == reference[0]


def count_resources() -> tuple[int, int, int]:
    """Return threads, open files and child processes."""
    me = psutil.Process()
    return threading.active_count(), me.num_fds(), len(me.children(recursive=True))


def settled_resources() -> tuple[int, int, int]:
    """Return count_resources() once it is the same five times; after 5 s as it is.

    A reader thread may have a file open, and the feeder threads of a queue end a moment after it.
    """
    gc.collect()  # objects that other tests left in cycles
    deadline, seen = time.monotonic() + 5, [count_resources()]
    while time.monotonic() < deadline and (len(seen) < 5 or len(set(seen[-5:])) > 1):
        time.sleep(0.05)
        seen.append(count_resources())
    return seen[-1]


def assert_no_more_than(before: tuple[int, int, int]) -> None:
    """Check, within 5 s, that threads, open files and child processes have not become more."""
    deadline = time.monotonic() + 5
    while np.greater(now := count_resources(), before).any() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not np.greater(now, before).any(), (now, before)


def test_leaving_epochs_early_leaks_nothing(photos: Path, engine: dict[str, Any]) -> None:
    with open_loader(photos, **engine) as loader:
        for round_ in range(16):
            for _ in itertools.islice(loader, 3):
                pass
            if round_ == 7:
                before = settled_resources()
        assert_no_more_than(before)


def test_opening_and_closing_leaks_nothing(photos: Path, engine: dict[str, Any]) -> None:
    def open_and_close() -> None:
        loader = open_loader(photos, **engine)
        next(iter(loader))
        loader.close()
        loader.close()

    open_and_close()  # the fork server and the resource tracker stay
    before = settled_resources()
    for _ in range(4):
        open_and_close()
    assert_no_more_than(before)


def test_kept_batches_and_views_are_never_overwritten(
    photos: Path, engine: dict[str, Any], reference: list[Step]
) -> None:
    with torch.inference_mode(), open_loader(photos, **engine) as loader:
        kept = list(loader.batches())
        views = [batch.images[0] for batch in loader.batches()]  # under inference_mode nothing else keeps the batch
    first, second = ([step for step in reference if step.epoch == epoch] for epoch in range(2))
    assert [record(batch, loader) for batch in kept] == first  # also after close
    assert [(Pixels(view, rounds=True),) for view in views] == [step.rows[0].pixels for step in second]


def test_one_iterator_at_a_time_and_none_after_close(photos: Path, engine: dict[str, Any]) -> None:
    loader = open_loader(photos, **engine)
    old = iter(loader)
    next(old)
    next(iter(loader))
    with pytest.raises(LoaderError, match="another iteration"):
        next(old)
    loader.set_epoch(0)  # after two looks in a row the next iteration would start another epoch
    current = iter(loader)
    next(current)
    loader.close()
    with pytest.raises(LoaderError, match="closed"):
        next(current)
    with pytest.raises(LoaderError, match="closed"):
        iter(loader).__next__()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_images_are_channels_last_and_normalised(photos: Path, dtype: torch.dtype) -> None:
    with open_loader(photos, dtype=dtype, with_index=True) as loader, open_loader(photos) as raw:
        (images, labels, index), (pixels, _) = next(iter(loader)), next(iter(raw))
    assert images.dtype == dtype
    assert images.shape == (12, 3, SIZE, SIZE)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert (labels.dtype, index.dtype) == (torch.int64, torch.int64)
    if dtype == torch.uint8:
        assert torch.equal(images, pixels)
    else:
        mean, std = torch.tensor((0.485, 0.456, 0.406)), torch.tensor((0.229, 0.224, 0.225))
        expected = (pixels.double() / 255 - mean.double()[:, None, None]) / std.double()[:, None, None]
        assert (images.double() - expected).abs().max() < {torch.float32: 1e-5, torch.float16: 2e-3}.get(dtype, 1e-2)


def test_statistics_count_batches_images_and_seconds(photos: Path, engine: dict[str, Any]) -> None:
    with open_loader(photos, **engine) as loader:
        assert loader.stats().batches == 0
        began = time.perf_counter()
        list(loader)
        passed, stats = time.perf_counter() - began, loader.stats()
    assert (stats.batches, stats.images) == (5, 60)
    assert 0 < stats.wait_s <= stats.elapsed_s <= passed
    assert 0 < stats.read_s < stats.produce_s
    assert stats.images_per_s == pytest.approx(60 / stats.elapsed_s)
    assert 0 <= stats.queue_depth <= 6


def test_mixing_requires_two_classes(tmp_path: Path) -> None:
    mixing: dict[str, Any] = {"pipeline": imagenet_train(SIZE, mixup=0.2), "batch_size": 2, "workers": 0}
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").write_bytes(photo(1))
    with create_loader(tmp_path, **mixing) as loader:
        assert next(iter(loader))[1].shape == (2, 2)
    (tmp_path / "b" / "1.jpg").rename(tmp_path / "a" / "2.jpg")
    (tmp_path / "b").rmdir()
    with pytest.raises(ValueError, match="mix classes, but this data set has only one"):
        create_loader(tmp_path, **mixing)


@pytest.mark.parametrize("pad", [None, True])
def test_resume_with_another_global_batch_serves_exactly_the_rest(photos: Path, pad: bool | None) -> None:
    with open_loader(photos, pad=True) as loader:
        stream = loader.batches()
        served = [i for _ in range(2) for i in next(stream).index.tolist()]
        state = loader.state_dict()
    with open_loader(photos, batch_size=5, drop_last=False, pad=pad) as loader:
        loader.load_state_dict(state)
        rest = [i for batch in loader.batches() for i in batch.index.tolist() if i >= 0]
    assert sorted(served + rest) == list(range(NUM_PHOTOS))


def test_a_resume_that_skips_the_rest_of_the_epoch_warns(photos: Path) -> None:
    with open_loader(photos) as loader:
        state = {**loader.state_dict(), "position": 48}
    with open_loader(photos, batch_size=14) as loader:
        with pytest.warns(UserWarning, match="the last 13 samples of epoch 0 are left out, because a step takes 14"):
            loader.load_state_dict(state)
        assert loader.epoch == 1


def test_a_loader_describes_its_data_like_torchs(photos: Path) -> None:
    with open_loader(photos, batch_size=5) as loader, open_loader(photos, evaluate=True) as judge:
        assert loader.batch_size == 5
        assert len(loader.dataset) == len(judge.sampler) == NUM_PHOTOS
        assert len(loader.sampler) == NUM_PHOTOS // 5 * 5
        assert loader.classes == loader.dataset.classes == tuple(sorted(path.name for path in photos.iterdir()))
        assert loader.dataset.targets == [label for _, labels in judge for label in labels.tolist()]
