"""Arguments of a wrong type are refused by name, at the call and not in the middle of a run."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from penstock.loaders import DataLoader, LoaderError, create_loader, open_source
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.cache_build.build_ranks import Ranks
from penstock.loaders.dali.dali_engine import DaliOptions
from penstock.loaders.data.cache.format import Encoding
from penstock.loaders.front.backends import OF_EVERY_BACKEND
from penstock.loaders.front.loader import Loader
from penstock.loaders.run.metrics.stats import serve_prometheus
from penstock.pipelines import Augmentations, ImagePipeline, imagenet_eval, imagenet_train

NAN, INF = float("nan"), float("inf")


def small(photos: Path, **settings: Any) -> Loader:
    return create_loader(photos, **{"pipeline": imagenet_train(16), "batch_size": 4, "workers": 0, **settings})


def built(photos: Path, **settings: Any) -> object:
    return build_cache(open_source(photos), photos.parent / "never.h5", **{"workers": 0, **settings})


def loaded(photos: Path, **arguments: Any) -> None:
    with small(photos) as loader:
        loader.load_state_dict(loader.state_dict(), **arguments)


def at_epoch(photos: Path, *, epoch: Any) -> None:
    with small(photos) as loader:
        loader.set_epoch(epoch)


def drop_in(photos: Path, *, epoch: Any = 0, **settings: Any) -> None:
    with DataLoader(TensorDataset(torch.arange(9)), shuffle=True, **settings) as loader:
        loader.set_epoch(epoch)


def cached_from(photos: Path, *, source: Any) -> object:
    return build_cache(source, photos.parent / "never.h5", workers=0)


def cached_at(photos: Path, *, dest: Any) -> object:
    return build_cache(open_source(photos), dest, workers=0)


def without_data(make: Callable[..., object]) -> Callable[..., object]:
    return lambda photos, **arguments: make(**arguments)


pipeline, dali, encoding = map(without_data, (imagenet_train, DaliOptions, Encoding))
server = without_data(lambda **arguments: serve_prometheus(None, **{"port": 9100, **arguments}))
REFUSED: dict[Callable[..., object], dict[str, tuple[str, list[Any]]]] = {
    pipeline: {
        "size": (r"\(height, width\)|size .* must be an integer", [(3, 224, 224), "224", 224.5, (224.5, 224), True]),
        "mean": (r"divide it by 255|mean .* must be a number", [(123.675, 116.28, 103.53), ("0.5", 0.5, 0.5)]),
        "std": (r"divide it by 255|std .* must be above 0", [np.array([58.395, 57.12, 57.375]), (0, 1, 1)]),
        "scale": (r"scale .* must be a number|scale must be \(low, high\)", [("0.1", "1"), 0.5]),
        "flip": ("flip.* must be a number", ["0.5", True, None]),
        "max_pixels": ("max_pixels must be an integer", [1e8, INF, "9", True]),
        "erasing": ("erasing.* must be a number", ["0.5", True]),
        "rand_ops": ("rand_ops must be an integer", [2.0, "2"]),
    },
    without_data(imagenet_eval): {"center_fraction": ("center_fraction must be", ["0.875", NAN, 87.5])},
    small: {
        "pipeline": ("pipeline must be an ImagePipeline", [imagenet_eval, False, "imagenet"]),
        "batch_size": ("batch_size must be", [4.0, "4", True, 0]),
        "device": ("device must be a torch device", ["gpu", None]),
        "dtype": ("dtype must be one of", ["float32"]),
        "seed": ("seed ", ["0", 1.0, -1, True, None, np.float64(1)]),
        "shuffle": ("shuffle must be True or False", ["no", 0, 1, np.int64(1)]),
        "drop_last": ("drop_last must be True or False", ["no", 0]),
        "with_index": ("with_index must be True or False", ["no", 1]),
        "rank": ("rank must be an integer", ["0", 0.0, False]),
        "decoder": ("decoder must be one of", ["", False]),
        "on_bad_sample": ("on_bad_sample must be one of", [True, None]),
        "on_repaired": ("on_repaired must be one of", ["", False]),
        "max_bad": ("max_bad must be", [NAN, "1%", -1, 2.5, True, 10**400]),
        "pad": ("pad must be True or False", [0, 1, 0.0, "no", np.array([True, False])]),
        "profile": ("profile (must be|needs)", ["nope", None]),
        "workers": ("workers must be", [1.5, "2", True, -1, NAN]),
        "prefetch": ("prefetch must be", [1.5, "2", 0]),
        "watchdog_s": ("watchdog_s must be", ["10", NAN, 0, True, None]),
        "workers_are": ("workers_are must be one of", [None, 2]),
        "start_method": ("start_method must be one of", [None]),
    },
    dali: {
        "readers": ("readers must be", [1.5, "2", 0]),
        "verify": ("verify must be", [True, 0.5, -1]),
        "hw_decoder_load": ("hw_decoder_load.* must be", ["0.5", NAN, 65, -0.1, 1.1]),
        "preallocate": ("preallocate.* must be", [640, (640,), (640, -1), (640, "480"), (640.0, 480)]),
        "host_memory_padding": ("host_memory_padding must be", [1e6, -1]),
        "device_memory_padding": ("device_memory_padding must be", [-1]),
        "decode": ("decode must be one of", [None, "half"]),
    },
    encoding: {
        "kind": ("encoding must be one of", [None, "webp"]),
        "resize": ("resize of Encoding must be", ["256", 256.5, True, 0]),
        "longer_side": ("longer_side (of Encoding must be True or False|needs resize)", ["no", 1, True]),
        "quality": ("quality of Encoding must be", [0.9, "90", 101]),
    },
    built: {
        "encoding": ("encoding must be an Encoding", ["raw", False]),
        "workers": ("workers must be", [1.5, -1, True]),
        "shards": ("shards .* must be", [2.0, 0, True]),
        "replace_stale": ("replace_stale must be True or False", ["no"]),
        "wait": ("wait must be True or False", [0]),
        "ranks": ("ranks must be Ranks", [3, (0, 2)]),
    },
    cached_from: {"source": ("source must be a Source", ["/path", "", []])},
    cached_at: {"dest": ("dest must be a path", [None, 3, ""])},
    without_data(Ranks): {"rank": ("rank must be", [5, -1, "0"]), "world_size": ("world_size must be", [0, 1.5])},
    drop_in: {
        "epoch": ("epoch must be", [2**32, -1, 2.5, "5", None, True]),
        "seed": ("seed must be", ["5", 1.5, [2], True, -1, 1 << 64]),
        "tuned": ("tuned must be True or False", ["no", "0", -1, NAN]),
        "watchdog_s": ("watchdog_s must be", [0]),
    },
    open_source: {
        "allow_empty": ("allow_empty must be True or False", ["no"]),
        "follow_symlinks": ("follow_symlinks must be True or False", ["no"]),
        "rescan": ("rescan must be True or False", [1]),
        "max_file_bytes": ("max_file_bytes must be", [1e9, 0, "1GB"]),
    },
    loaded: {"strict": ("strict must be True or False", ["no", 0])},
    at_epoch: {"epoch": ("epoch must be", [2**32, -1, 1.0, "1", True])},
    server: {"port": ("port must be", ["9100", 9100.0, 0, True]), "rank": ("rank must be", ["0"])},
}


@pytest.mark.parametrize(
    ("call", "name", "value", "words"),
    [
        (call, name, value, words)
        for call, arguments in REFUSED.items()
        for name, (words, values) in arguments.items()
        for value in values
    ],
)
def test_an_argument_of_a_wrong_type_is_refused_by_name(
    photos: Path, call: Callable[..., object], name: str, value: object, words: str
) -> None:
    more = {"world_size": 1} if name == "rank" and call is small else {}
    with pytest.raises(ValueError, match=words):
        call(photos, **{name: value}, **more)


def test_a_misspelled_argument_is_answered_with_the_right_name(photos: Path) -> None:
    assert set(inspect.signature(create_loader).parameters) - {"source", "options"} <= set(OF_EVERY_BACKEND)
    with pytest.raises(ValueError, match="has no option patch: pass patches="):
        create_loader(photos, patch=16)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_cache_in_a_missing_folder_is_refused(photos: Path, tmp_path: Path, shards: int) -> None:
    dest = tmp_path / "cahces" / "imagenet" / "train.h5"
    with pytest.raises(LoaderError, match=r"E-MISUSE.*the folder '[^']*/cahces' does not exist"):
        build_cache(open_source(photos), dest, workers=0, shards=shards)
    with pytest.raises(LoaderError, match="E-MISUSE"):
        small(photos, backend="hdf5", cache=dest)
    with pytest.raises(ValueError, match="cache must be a path"):
        small(photos, backend="hdf5", cache=True)
    assert not list(tmp_path.iterdir())


def test_numpy_values_lists_and_arrays_become_python_values(photos: Path) -> None:
    given = imagenet_train(
        np.int64(16), flip=np.float32(0.5), mean=[0.5, 0.5, 0.5], std=np.ones(3), mixup=np.float32(1)
    )
    plain = imagenet_train(16, mean=(0.5, 0.5, 0.5), std=(1.0, 1.0, 1.0), mixup=1.0)
    assert given == plain
    assert hash(given) == hash(plain)
    assert json.dumps([given.size, given.flip, given.std]) == json.dumps([plain.size, plain.flip, plain.std])
    assert ImagePipeline(size=torch.Size([16, 16])).size == (16, 16)
    assert Augmentations(color_jitter=[0.4, 0.4, 0.4, 0.1]).color_jitter == (0.4, 0.4, 0.4, 0.1)
    with small(photos, shuffle=np.bool_(False), drop_last=np.bool_(True), max_bad=np.float32(0.5)) as loader:
        state = json.loads(json.dumps(loader.state_dict()))
    assert state["shuffle"] is False


def test_a_state_with_shuffle_0_or_1_is_loaded(photos: Path) -> None:
    with small(photos, shuffle=False) as loader:
        loader.load_state_dict({**loader.state_dict(), "shuffle": 0})
        with pytest.raises(LoaderError, match="shuffle=True, this loader has False"):
            loader.load_state_dict({**loader.state_dict(), "shuffle": 1})


@pytest.mark.parametrize("epoch", [np.int64(3), np.array(3), torch.tensor(3)], ids=["int64", "array", "tensor"])
def test_an_epoch_of_the_drop_in_loader_becomes_a_separate_integer(epoch: Any) -> None:
    with DataLoader(TensorDataset(torch.arange(9)), shuffle=True, seed=0) as loader:
        loader.set_epoch(epoch)
        next(iter(loader))
        state = json.loads(json.dumps(loader.state_dict()))
        list(loader)
        assert (state["epoch"], int(epoch)) == (3, 3)
        loader.load_state_dict(state)
        assert loader.epoch == 3
