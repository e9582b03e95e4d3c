"""The promises of a loader, on every backend: written once, a new backend is one line in BACKENDS."""

from __future__ import annotations

import gc
import itertools
import json
import os
import threading
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pytest
import torch
from photo_folder import photo, write_folder

from penstock.loaders import LoaderError, create_loader
from penstock.loaders.batch import Batch
from penstock.loaders.loader import Loader
from penstock.pipelines import imagenet_eval, imagenet_train
from penstock.pipelines.native.library import native_library

# name of a case -> (backend, options that change who does the work and never the stream). Each backend meets each
# decoder and each kind of workers, and each kind of workers meets each decoder.
PYTHON = {"decoder": "simplejpeg"}  # a decoder that is named decodes all images: none is left to the native library
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
NUM_PHOTOS = 61
SIZE = 32


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> dict[str, Any]:
    name, options = BACKENDS[request.param]
    if options.get("decoder") == "native" and native_library() is None:
        pytest.skip("the native library was not built here")
    return {"backend": name, **options}


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


class Picture:
    """The pixels of one sample: equal to none but the same, unless `rounds`: then to those that are rounded otherwise.

    DALI's resize is antialiased as torch's is, with sums in another precision: the mean distance is at most one level.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, pixels: npt.NDArray[np.uint8], *, rounds: bool) -> None:
        self.crc, self.rounds = zlib.crc32(pixels.tobytes()), rounds
        self.pixels = pixels.copy()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Picture):
            return NotImplemented
        if not self.rounds and not other.rounds:
            return self.crc == other.crc
        distance = np.abs(self.pixels.astype(int) - other.pixels.astype(int))
        return bool(distance.mean() <= 1 and np.quantile(distance, 0.999) <= 4)

    def __repr__(self) -> str:
        return f"Picture({self.crc:08x})"


def record(batch: Batch, loader: Loader) -> tuple[Any, ...]:
    """All that two equal batches have in common, pixels included."""
    pixels = batch.images.permute(0, 2, 3, 1).contiguous().numpy()
    pictures = tuple(Picture(image, rounds=loader.describe()["backend"] == "dali") for image in pixels)
    windows = tuple(map(tuple, batch.windows.tolist()))
    labels = tuple(batch.labels.tolist())
    return batch.epoch, batch.step, tuple(batch.index.tolist()), labels, windows, tuple(batch.flips.tolist()), pictures


def serve(loader: Loader, epochs: int) -> list[tuple[Any, ...]]:
    served = []
    while loader.epoch < epochs:
        served += [record(batch, loader) for batch in loader.batches()]
    return served


@pytest.fixture(scope="module")
def reference(photos: Path) -> list[tuple[Any, ...]]:
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
    photos: Path, options: dict[str, Any], reference: list[tuple[Any, ...]]
) -> None:
    with open_loader(photos, **options) as loader:
        assert serve(loader, 2) == reference


def test_a_seed_and_an_epoch_change_order_crops_and_flips(photos: Path, reference: list[tuple[Any, ...]]) -> None:
    with open_loader(photos, seed=8) as loader:
        other = serve(loader, 1)
    first, second = reference[: len(other)], reference[len(other) :]
    for one, two in ((first, second), (first, other)):
        assert [r[2] for r in one] != [r[2] for r in two]
        windows = [
            dict(zip(sum((r[2] for r in run), ()), sum((r[4] for r in run), ()), strict=True)) for run in (one, two)
        ]
        common = windows[0].keys() & windows[1].keys()
        assert sum(windows[0][k] == windows[1][k] for k in common) < len(common) / 4


def test_an_epoch_serves_each_sample_at_most_once_with_its_label(
    photos: Path, reference: list[tuple[Any, ...]]
) -> None:
    names = sorted(os.fsencode(p.relative_to(photos)) for p in photos.rglob("*.jpg"))
    for epoch in (0, 1):
        rows = [(i, label) for r in reference if r[0] == epoch for i, label in zip(r[2], r[3], strict=True)]
        assert max(Counter(i for i, _ in rows).values()) == 1
        assert len(rows) == NUM_PHOTOS // 12 * 12
        assert all(names[i].startswith(b"class%d" % label) for i, label in rows)


# ---- elastic order ----


@pytest.mark.parametrize("world_size", [2, 3, 4, 6])
def test_a_step_holds_the_same_samples_for_every_world_size(
    photos: Path, world_size: int, reference: list[tuple[Any, ...]]
) -> None:
    check_ranks(photos, NATIVE, world_size, reference)


def test_a_step_holds_the_same_samples_for_three_ranks_of_every_backend(
    photos: Path, backend: dict[str, Any], reference: list[tuple[Any, ...]]
) -> None:
    check_ranks(photos, backend, 3, reference)


def check_ranks(photos: Path, options: dict[str, Any], world_size: int, reference: list[tuple[Any, ...]]) -> None:
    ranks = []
    for rank in range(world_size):
        settings = {**options, "batch_size": 12 // world_size, "rank": rank, "world_size": world_size}
        with open_loader(photos, **settings) as loader:
            ranks.append(serve(loader, 2))
            assert len(loader) == NUM_PHOTOS // 12
    for number, whole in enumerate(reference):
        parts = [rank[number] for rank in ranks]
        assert all(part[:2] == whole[:2] for part in parts)
        for column in range(2, 7):  # index, labels, windows, flips, pictures: the parts in rank order are the whole
            assert sum((part[column] for part in parts), ()) == whole[column]


# ---- resume ----


def serve_with_states(loader: Loader) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]]]:
    """Two epochs, and the state before each batch and after the last."""
    served, states = [], [json.loads(json.dumps(loader.state_dict()))]
    for batch in itertools.chain.from_iterable(loader.batches() for _ in range(2)):
        served.append(record(batch, loader))
        states.append(json.loads(json.dumps(loader.state_dict())))
    return served, states


@pytest.fixture(scope="module")
def states(photos: Path) -> list[dict[str, Any]]:
    """Those of every loader over `photos`; they count delivered batches, never those that are made ahead."""
    with open_loader(photos, **PYTHON) as loader:
        found = serve_with_states(loader)[1]
        places = [(state["epoch"], state["position"]) for state in found]
        assert places == [*((epoch, 12 * step) for epoch in range(2) for step in range(len(loader))), (2, 0)]
    return found


def test_stream_and_states_are_the_same_on_every_backend(
    photos: Path, backend: dict[str, Any], reference: list[tuple[Any, ...]], states: list[dict[str, Any]]
) -> None:
    with open_loader(photos, **backend) as loader:
        assert serve_with_states(loader) == (reference, states)


def test_resume_at_every_boundary_continues_exactly(
    photos: Path, reference: list[tuple[Any, ...]], states: list[dict[str, Any]]
) -> None:
    for stop, state in enumerate(states):
        # by another number of workers, and in the second half by two ranks
        world_size = 2 if stop % 2 else 1
        tails = []
        for rank in range(world_size):
            place = {"rank": rank, "world_size": world_size, "batch_size": 12 // world_size}
            with open_loader(photos, workers=1 if stop % 4 == 0 else 0, **place) as loader:
                loader.load_state_dict(state)
                tails.append(serve(loader, 2))
        tail = [
            (*parts[0][:2], *(sum((p[c] for p in parts), ()) for c in range(2, 7)))
            for parts in zip(*tails, strict=True)
        ]
        assert tail == reference[stop:], stop


def test_a_resume_of_a_resume_continues_exactly(
    photos: Path, backend: dict[str, Any], reference: list[tuple[Any, ...]]
) -> None:
    served: list[tuple[Any, ...]] = []
    state = None
    while len(served) < len(reference):
        with open_loader(photos, **backend) as loader:
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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("fingerprint", "0" * 32),
        ("samples", NUM_PHOTOS + 1),
        ("seed", 8),
        ("shuffle", False),
        ("sampler", "other-1"),
        ("version", 99),
        ("epoch", -1),
        ("epoch", "0"),
        ("position", NUM_PHOTOS + 1),
        ("position", 1.5),
        ("position", True),
        ("unknown", 1),
    ],
)
def test_a_foreign_state_is_refused(photos: Path, field: str, value: Any) -> None:
    with open_loader(photos) as loader:
        state = {**loader.state_dict(), field: value}
        with pytest.raises(LoaderError, match="E-STATE"):
            loader.load_state_dict(state)
        del state[field]
        with pytest.raises(LoaderError, match="E-STATE"):
            loader.load_state_dict({k: v for k, v in loader.state_dict().items() if k != "seed"})


# ---- augmentations ----

PIXELS = {"auto_augment": "rand", "rand_magnitude": 15, "color_jitter": (0.4, 0.4, 0.4, 0.1), "erasing": 0.3}
MIXED = {**PIXELS, "mixup": 0.4, "cutmix": 1.0}
# DALI's pixels are one level off, which equalize, solarize, posterize and hue make any number of levels of: there only
# operations are compared that keep a small distance small, beside the soft targets, whose shares are the whole plan of
# mixing. What is drawn never depends on a backend: it is made of seed, epoch and indices in front of the engines.
GENTLE = {"color_jitter": (0.2, 0.2, 0.2, 0.0), "erasing": 0.3}


@pytest.fixture(scope="module")
def augmented(photos: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Of each recipe the stream that every loader must serve."""
    streams = {}
    for name, recipe in (("pixels", PIXELS), ("gentle", GENTLE)):
        with open_loader(photos, pipeline=imagenet_train(SIZE, **recipe)) as loader:
            streams[name] = serve(loader, 2)
    with open_loader(photos, pipeline=imagenet_train(SIZE, **MIXED), dtype=torch.float32) as loader:
        streams["mixed"] = serve_floats(loader)
    return streams


def serve_floats(loader: Loader) -> list[tuple[Any, ...]]:
    """(epoch, index, images, soft targets) of the batches of two epochs."""
    served = []
    while loader.epoch < 2:
        served += [(b.epoch, b.index.tolist(), b.images.clone(), b.labels) for b in loader.batches()]
    return served


def assert_mixed_alike(
    parts: list[list[tuple[Any, ...]]], whole: list[tuple[Any, ...]], *, pixels_too: bool = True
) -> None:
    """That the ranks' parts in rank order are the whole, targets to the last bit."""
    for steps in zip(whole, *parts, strict=True):
        (epoch, index, images, targets), ranks = steps[0], steps[1:]
        assert all(rank[0] == epoch for rank in ranks)
        assert list(itertools.chain.from_iterable(rank[1] for rank in ranks)) == index
        assert torch.equal(torch.cat([rank[3] for rank in ranks]), targets)
        if pixels_too:
            assert torch.equal(torch.cat([rank[2] for rank in ranks]), images)


def test_augmentations_are_the_same_on_every_backend_for_two_ranks_and_after_a_resume(
    photos: Path, backend: dict[str, Any], augmented: dict[str, list[tuple[Any, ...]]], reference: list[tuple[Any, ...]]
) -> None:
    dali = backend["backend"] == "dali"
    expected = augmented["gentle" if dali else "pixels"]
    pipeline = imagenet_train(SIZE, **(GENTLE if dali else PIXELS))
    assert all(one[:6] == two[:6] for one, two in zip(expected, reference, strict=True))  # crops and flips as ever
    assert sum(one[6] != two[6] for one, two in zip(expected, reference, strict=True)) == len(reference)
    with open_loader(photos, pipeline=pipeline, **backend) as loader:
        head = [record(batch, loader) for batch in itertools.islice(loader.batches(), 2)]
        state = json.loads(json.dumps(loader.state_dict()))
    ranks = []
    for rank in range(2):
        place = {"batch_size": 6, "rank": rank, "world_size": 2}
        with open_loader(photos, pipeline=pipeline, **backend, **place) as loader:
            loader.load_state_dict(state)
            ranks.append(serve(loader, 2))
    tail = [(*a[:2], *(x + y for x, y in zip(a[2:], b[2:], strict=True))) for a, b in zip(*ranks, strict=True)]
    assert head + tail == expected

    mixed, whole = {"pipeline": imagenet_train(SIZE, **MIXED), "dtype": torch.float32, **backend}, augmented["mixed"]
    with open_loader(photos, **mixed) as loader:
        for _ in itertools.islice(loader.batches(), 3):
            state = loader.state_dict()
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert_mixed_alike([serve_floats(loader)], whole[3:], pixels_too=not dali)
    parts = []
    for rank in range(2):
        with open_loader(photos, **mixed, batch_size=6, rank=rank, world_size=2) as loader:
            parts.append(serve_floats(loader))
    assert_mixed_alike(parts, whole, pixels_too=not dali)


def test_the_seed_of_the_loader_is_that_of_its_augmentations(photos: Path) -> None:
    """Without crops, flips and shuffling, what is left of the seed is in what is mixed."""
    still = {"crop": "center", "flip": 0.0, "mixup": 1.0}
    settings = {"pipeline": imagenet_train(SIZE, **still), "dtype": torch.float32, "shuffle": False, "drop_last": True}
    streams = []
    for seed in (7, 8, 7):
        with open_loader(photos, seed=seed, **settings) as loader:
            streams.append(serve_floats(loader))
    assert all(torch.equal(a[2], b[2]) for a, b in zip(streams[0], streams[2], strict=True))
    assert not any(torch.equal(a[2], b[2]) for a, b in zip(streams[0], streams[1], strict=True))
    first, second = ([s[2] for s in streams[0] if s[0] == epoch] for epoch in (0, 1))
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))


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
        assert (labels < 0).sum() == 11  # the last row that is no padding has it for a partner


# ---- exact evaluation ----


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 7, 13, 60])
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


def test_evaluation_is_the_same_each_epoch_and_on_every_backend(photos: Path, backend: dict[str, Any]) -> None:
    with open_loader(photos, evaluate=True, **backend) as loader:
        first, second = ([record(b, loader)[1:] for b in loader.batches()] for _ in range(2))
        assert first == second
        assert [i for r in first for i in r[1]] == list(range(NUM_PHOTOS))


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format], ids=str)
def test_the_last_batch_is_short_or_padded_with_label_minus_one(
    photos: Path, backend: dict[str, Any], memory_format: torch.memory_format
) -> None:
    settings = {"evaluate": True, "dtype": torch.float32, "batch_size": 16, "memory_format": memory_format, **backend}
    with open_loader(photos, **settings) as short, open_loader(photos, pad=True, **settings) as full:
        pairs = list(zip(short.batches(), full.batches(), strict=True))
    assert [len(batch.labels) for batch, _ in pairs] == [16, 16, 16, 13]
    for batch, padded in pairs:
        rows = len(batch.labels)
        assert batch.images.is_contiguous(memory_format=memory_format)
        logits = batch.images.flatten(1)[:, :8]
        assert torch.nn.functional.cross_entropy(logits, batch.labels).isfinite()  # -1 is out of its bounds
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


def test_the_batches_before_a_bad_sample_are_served(damaged: tuple[Path, list[int]], backend: dict[str, Any]) -> None:
    root, _ = damaged
    with open_loader(root, shuffle=False, batch_size=3, **backend) as loader:
        stream = loader.batches()
        assert next(stream).index.tolist() == [0, 1, 2]
        state = loader.state_dict()
        with pytest.raises(LoaderError):
            next(stream)
        assert loader.state_dict() == state
        loader.load_state_dict({**state, "position": 6})
        assert next(loader.batches()).index.tolist() == [6, 7, 8]  # the loader is still good for what is good


def test_replace_keeps_batches_full_and_the_ledger_true(
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
        whole = next(loader.batches())
        assert record(whole, loader)[6] == tuple(itertools.chain.from_iterable(record(b, loader)[6] for b in batches))


def test_evaluation_leaves_bad_samples_out_or_pads(damaged: tuple[Path, list[int]], backend: dict[str, Any]) -> None:
    root, bad = damaged
    served = []
    # A batch of one bad sample comes last: without padding nothing is left of it.
    for pad, sizes in ((None, [9, 11, 12, 11, 12]), (True, [12] * 6)):
        with open_loader(root, evaluate=True, on_bad_sample="replace", pad=pad, **backend) as loader:
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
    with open_loader(root, max_bad=max_bad, **settings) as loader, pytest.raises(LoaderError, match="E-MAXBAD"):
        list(loader)
    with open_loader(root, max_bad=6, **settings) as loader:
        assert len(list(loader)) == len(loader)


@pytest.mark.filterwarnings("ignore:the data has no labels")
def test_a_data_set_without_a_good_sample_is_an_error(tmp_path: Path, backend: dict[str, Any]) -> None:
    for number in range(12):
        (tmp_path / f"{number}.jpg").write_bytes(b"not an image at all")
    with (
        open_loader(tmp_path, on_bad_sample="replace", **backend) as loader,
        pytest.raises(LoaderError, match="E-MAXBAD"),
    ):
        list(loader)


# ---- the iterator ----


def test_an_epoch_left_after_its_first_batch_is_over(
    photos: Path, backend: dict[str, Any], reference: list[tuple[Any, ...]]
) -> None:
    first, second = ([r for r in reference if r[0] == epoch] for epoch in range(2))
    with open_loader(photos, **backend) as loader:
        state = [loader.state_dict() for _ in zip(range(2), loader, strict=False)][-1]
        next(iter(loader))
        assert [record(batch, loader) for batch in loader.batches()] == second
        loader.load_state_dict(state)
        next(iter(loader))
        assert [record(batch, loader) for batch in loader.batches()] == first[2:]
        assert loader.ledger(0).planned == sum(len(r[2]) for r in first)


def test_set_epoch_chooses_the_epoch_and_keeps_a_resumed_place(
    photos: Path, backend: dict[str, Any], reference: list[tuple[Any, ...]]
) -> None:
    with open_loader(photos, **backend) as loader:
        loader.set_epoch(1)
        assert [record(b, loader) for b in loader.batches()] == [r for r in reference if r[0] == 1]
        loader.set_epoch(0)
        assert record(next(loader.batches()), loader) == reference[0]
        state = loader.state_dict()
        loader.load_state_dict(state)
        loader.set_epoch(0)
        assert record(next(loader.batches()), loader) == reference[1]
        loader.set_epoch(0)  # under way: begins anew
        assert record(next(loader.batches()), loader) == reference[0]


def settled_footprint(expected: tuple[int, int, int] | None = None) -> tuple[int, int, int]:
    """Threads, open files and child processes, once they are `expected` or the same five times; 5 s at most.

    A reader thread may have a file open, and the feeder threads of a queue end a moment after it.
    """
    me, deadline, seen = psutil.Process(), time.monotonic() + 5, [(0, 0, 0)]
    while time.monotonic() < deadline:
        seen.append((threading.active_count(), me.num_fds(), len(me.children(recursive=True))))
        if seen[-1] == expected or (expected is None and len(seen) > 5 and len(set(seen[-5:])) == 1):
            break
        time.sleep(0.05)
    return seen[-1]


def test_leaving_epochs_early_leaks_nothing(photos: Path, backend: dict[str, Any]) -> None:
    with open_loader(photos, **backend) as loader:
        for round_ in range(24):
            for _ in itertools.islice(loader, 3):
                pass
            if round_ == 7:
                before = settled_footprint()
        assert settled_footprint(before) == before


def test_opening_and_closing_leaks_nothing(photos: Path, backend: dict[str, Any]) -> None:
    def open_and_close() -> None:
        loader = open_loader(photos, **backend)
        next(iter(loader))
        loader.close()
        loader.close()

    open_and_close()  # the fork server and the resource tracker stay
    gc.collect()  # what other tests have left in cycles
    time.sleep(1.0)
    before = settled_footprint()
    for _ in range(4):
        open_and_close()
    assert settled_footprint(before) == before


def test_a_kept_batch_is_never_overwritten(
    photos: Path, backend: dict[str, Any], reference: list[tuple[Any, ...]]
) -> None:
    with open_loader(photos, **backend) as loader:
        kept = [batch for _ in range(2) for batch in loader.batches()]
    assert [record(batch, loader) for batch in kept] == reference  # also after close


def test_a_kept_view_is_never_overwritten(
    photos: Path, backend: dict[str, Any], reference: list[tuple[Any, ...]]
) -> None:
    with torch.inference_mode(), open_loader(photos, **backend) as loader:
        kept = [batch.images[0] for _ in range(2) for batch in loader.batches()]
        found = [Picture(view.permute(1, 2, 0).contiguous().numpy(), rounds=True) for view in kept]
    assert found == [pictures[0] for *_, pictures in reference]


def test_one_iterator_at_a_time_and_none_after_close(photos: Path, backend: dict[str, Any]) -> None:
    loader = open_loader(photos, **backend)
    old = iter(loader)
    next(old)
    next(iter(loader))
    with pytest.raises(LoaderError, match="another iteration"):
        next(old)
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


def test_statistics_count_batches_images_and_seconds(photos: Path, backend: dict[str, Any]) -> None:
    with open_loader(photos, **backend) as loader:
        assert loader.stats().batches == 0
        list(loader)
        stats = loader.stats()
    assert (stats.batches, stats.images) == (5, 60)
    assert 0 < stats.wait_s <= stats.elapsed_s
    assert 0 < stats.read_s < stats.produce_s
    assert stats.images_per_s == pytest.approx(60 / stats.elapsed_s)
    assert 0 <= stats.queue_depth <= 6


def test_settings_that_cannot_work_are_refused_at_once(photos: Path) -> None:
    for wrong in (
        {"backend": "tf"},
        {"batch_size": NUM_PHOTOS + 1},
        {"rank": 1},
        {"rank": 2, "world_size": 2},
        {"dtype": torch.int32},
        {"pipeline": imagenet_train(SIZE, mixup=0.2), "dtype": torch.float32, "batch_size": 7},
        {"pipeline": imagenet_train(SIZE, mixup=0.2), "dtype": torch.uint8},
        {"nonsense": 1},
    ):
        with pytest.raises(ValueError, match=r"\w"):
            open_loader(photos, **wrong)


def test_mixing_takes_two_classes(tmp_path: Path) -> None:
    mixing: dict[str, Any] = {"pipeline": imagenet_train(SIZE, mixup=0.2), "batch_size": 2, "workers": 0}
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").write_bytes(photo(1))
    with create_loader(tmp_path, **mixing) as loader:
        assert next(iter(loader))[1].shape == (2, 2)
    (tmp_path / "b" / "1.jpg").rename(tmp_path / "a" / "2.jpg")
    (tmp_path / "b").rmdir()
    with pytest.raises(ValueError, match="mix classes, and this data set has only one"):
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


def test_a_resume_that_leaves_the_rest_of_the_epoch_out_warns(photos: Path) -> None:
    with open_loader(photos) as loader:
        state = {**loader.state_dict(), "position": 48}
    with open_loader(photos, batch_size=14) as loader:
        with pytest.warns(UserWarning, match="the last 13 samples of epoch 0 are left out, as a step takes 14"):
            loader.load_state_dict(state)
        assert loader.epoch == 1


def test_a_loader_describes_its_data_as_those_of_torch_do(photos: Path) -> None:
    with open_loader(photos, batch_size=5) as loader, open_loader(photos, evaluate=True) as judge:
        assert loader.batch_size == 5
        assert len(loader.dataset) == len(judge.sampler) == NUM_PHOTOS
        assert len(loader.sampler) == NUM_PHOTOS // 5 * 5
        assert loader.classes == loader.dataset.classes == tuple(sorted(path.name for path in photos.iterdir()))
        assert loader.dataset.targets == [label for _, labels in judge for label in labels.tolist()]
