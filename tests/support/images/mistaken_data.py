"""Data that users pass by mistake, and the messages that they get."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from photo_folder import photo, write_folder
from tar_files import END, entry, write_tar
from torch.utils.data import RandomSampler, TensorDataset
from transform_functions import mean

from penstock import loaders, pipelines
from penstock.loaders.order.permutation import Permutation
from penstock.loaders.order.schedule import Schedule
from penstock.pipelines import imagenet_train, presets
from penstock.pipelines.errors import LoaderError

HARMFUL = ("astype('int64')", "chmod 777", "rm -r")  # advice that messages must not contain
SMALL: dict[str, Any] = {"pipeline": imagenet_train(16), "batch_size": 4, "workers": 0}
SETTINGS: dict[str, Any] = {
    "BLOCKS": loaders.Blocks(samples=4, group=8),
    "BUCKETS": [(32, 32), (24, 40), (40, 24)],
    "PATCHES": loaders.PatchBudget(size=8, sequence_lengths=16),
    "VIEWS": (imagenet_train(32), imagenet_train(24)),
    "RAW": loaders.Encoding(kind="raw"),
    "DEEP": pipelines.ImagePipeline(size=(16, 16), depth=16),
}
ROWS = [f"photos/class{n % 3}/{n:04d}.jpg,class{n % 3}\n" for n in range(12)]
TABLES = {
    "labels.csv": ["path,label\n", *ROWS],
    "noheader.csv": ROWS,
    "odd.csv": ["id,species\n", *ROWS],
    "semi.csv": ["path;label\n", *(row.replace(",", ";") for row in ROWS)],
    "gone.csv": ["path,label\n", "nowhere/0000.jpg,a\n"],
    "minus.csv": ["path,label\n", "photos/class0/0000.jpg,-1\n"],
    "unlabelled.csv": ["path,label\n", "photos/class0/0000.jpg,\n"],
    "header.csv": ["path,label\n"],
    "zero.csv": [],
    "half.jsonl": ['{"path": "photos/class0/0000.jpg", "label": 0}\n', '{"path": \n'],
}


def write_mistakes(root: Path) -> Path:
    """Write valid and invalid folders, tables and archives; return `root`."""
    write_folder(root / "photos", 12)
    write_folder(root / "more", 13)
    write_folder(root / "few", 2)
    for path in ("empty", "hollow/b", "masks"):
        (root / path).mkdir(parents=True)
    for path in (
        "flat/1.jpg",
        "hollow/a/1.jpg",
        "hidden/.cat/1.jpg",
        "sets/train/1.jpg",
        "sets/val/1.jpg",
        "bad/1.jpg",
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(photo(1))
    others = [
        f"a.{suffix}"
        for suffix in ["tar", "parquet", "h5", "zip", "npz", "tfrecord", "beton", "LMDB", "txt", "json", "ppm"]
    ]
    others += ["notes/readme.md", "heic/1.heic", "bad/2.jpg", "described/index.json", "described/readme.txt"]
    for path in (*others, "mosaic/index.json", "mosaic/shard.00000.mds", "stacks/a/1.npy"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"<html>not found</html>")
    for name, lines in TABLES.items():
        (root / name).write_text("".join(lines))
    write_tar(root / "texts.tar", [(f"{n}.txt", b"x") for n in range(6)])
    pairs = (("jpg", photo(1)), ("cls", b"1"))
    write_tar(root / "plain.tar", [(f"{n}.jpg", photo(n)) for n in range(6)])
    members = b"".join(entry(f"{n}.jpg".encode(), photo(n)) for n in range(6))
    (root / "cut.tar").write_bytes(members)
    (root / "joined.tar").write_bytes(2 * (members + END))
    write_tar(root / "good.tar", [(f"{n}.{what}", data) for n in range(6) for what, data in pairs])
    import h5py  # tests look at what is message without it

    with h5py.File(root / "own.h5", "w") as file:
        file["images"] = np.zeros((4, 8, 8, 3), np.uint8)
    for name in ("changed", "renamed", "fewer"):
        shutil.copytree(root / "photos", root / name)
    (root / "changed/class0/0000.jpg").write_bytes(photo(77))
    (root / "renamed/class0/0000.jpg").rename(root / "renamed/class0/first.jpg")
    (root / "fewer/class0/0000.jpg").unlink()
    return root


class Half:
    """A user's class that is intended as a Source, but incomplete."""

    def __len__(self) -> int:
        return 3

    def read(self, index: int) -> bytes:
        return b""


class Own:
    """A user's Source with a mistake in its members or in the result of labels()."""

    fingerprint, skipped = "0" * 32, {}

    def __init__(self, labels: Any = None, classes: Any = (b"cat", b"dog"), read: Any = None) -> None:
        self._labels, self.classes, self._read = labels, classes, read

    def __len__(self) -> int:
        return 6

    def read(self, index: int) -> Any:
        return photo(index) if self._read is None else self._read(index)

    def labels(self, indices: Any) -> Any:
        return indices % 2 if self._labels is None else self._labels(indices)

    def path(self, index: int) -> bytes:
        return b"own %d" % index

    def describe(self) -> str:
        return "6 images"


class MapStyle:
    """A user's map-style data set for torch."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index


def create_loader(*sources: Any, **options: Any) -> Any:
    """The package's create_loader with batches that this data fills."""
    return loaders.create_loader(*sources, **{"batch_size": 2, **options})


def loader(**options: Any) -> Any:
    """A loader of the photos."""
    return create_loader("photos", **options)


def cached(**options: Any) -> Any:
    """A loader of the photos through a cache that is not built yet."""
    return loader(**{"backend": "hdf5", "cache": "never.h5", **options})


def serve(source: Any = "photos", **options: Any) -> None:
    """Serve an epoch."""
    with loaders.create_loader(source, **{**SMALL, **options}) as loader:
        list(loader)


def state(source: Any = "photos", **options: Any) -> Any:
    """Return the state of a loader after its first batch."""
    with loaders.create_loader(source, **{**SMALL, **options}) as loader:
        next(iter(loader))
        return loader.state_dict()


def resume(saved: Any, source: Any = "photos", **options: Any) -> None:
    """Load a state into a loader."""
    with loaders.create_loader(source, **{**SMALL, **options}) as loader:
        loader.load_state_dict(saved)


def names() -> dict[str, Any]:
    """Return the names that the code of a mistake can use."""
    helpers: list[Any] = [create_loader, loader, cached, serve, state, resume, Half, Own, MapStyle, mean]
    helpers += [Path, RandomSampler, TensorDataset, Permutation, Schedule]
    found = {each.__name__: each for each in helpers} | SETTINGS
    images, paths = np.zeros((6, 8, 8, 3), np.uint8), sorted(map(str, Path("photos").rglob("*.jpg")))
    data = {"images": images, "labels": np.arange(6) % 3, "paths": paths, "dataset": TensorDataset(torch.arange(9))}
    public = {"SMALL": SMALL} | {name: getattr(loaders, name) for name in loaders.__all__} | vars(pipelines)
    return {**public, "np": np, "torch": torch, "presets": presets, "pipelines": pipelines, **found, **data}


def run_mistake(mistake: str) -> str:
    """Run a line of code; return its error, or else its warnings, or ""."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            run: Callable[..., None] = eval
            run(mistake, names())
        except LoaderError as error:
            return str(error)
        except (ValueError, TypeError, IndexError, AttributeError) as error:
            return f"{type(error).__name__}: {error}"
    return " ".join(f"{type(each.message).__name__}: {each.message}" for each in warned)


def check_message(mistake: str, words: str) -> None:
    """Check that the message for a line of code contains all `words` (separated by "|"), is short and harmless."""
    message = run_mistake(mistake)
    assert [word for word in words.split("|") if word not in message] == [], message
    assert message.isprintable(), message
    assert len(message) < 700
    assert not any(advice in message for advice in HARMFUL)
