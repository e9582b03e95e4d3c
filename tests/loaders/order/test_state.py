"""Contents of a state besides the position: the pipeline, which must be the same, and the ledger, which continues."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photo_folder import photo, write_folder

from penstock.loaders import LoaderError, create_loader
from penstock.loaders.front.loader import Loader
from penstock.loaders.order.ledger import EpochLedger
from penstock.pipelines import imagenet_eval, imagenet_train

NUM_PHOTOS, SIZE = 24, 16


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos with 2, 3, 9 and 20 truncated."""
    root = write_folder(tmp_path_factory.mktemp("damaged"), NUM_PHOTOS, classes=1)
    for number in (2, 3, 9, 20):
        (root / "class0" / f"{number:04d}.jpg").write_bytes(photo(number)[:200])
    return root


def open_loader(data: Path, **settings: Any) -> Loader:
    defaults = {"pipeline": imagenet_train(SIZE), "batch_size": 4, "dtype": torch.uint8, "seed": 7, "workers": 0}
    return create_loader(data, **{**defaults, **settings})


def state_after(data: Path, batches: int, **settings: Any) -> dict[str, Any]:
    with open_loader(data, **settings) as loader:
        for _ in itertools.islice(loader.batches(), batches):
            pass
        state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
        return state


# ---- the pipeline ----


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pipeline": imagenet_train(32)}, "size=[16, 16], this loader has [32, 32]"),
        ({"pipeline": imagenet_train((16, 17))}, "size=[16, 16], this loader has [16, 17]"),
        ({"pipeline": imagenet_train(SIZE, scale=(0.5, 1.0))}, "scale=[0.08, 1.0], this loader has [0.5, 1.0]"),
        ({"pipeline": imagenet_train(SIZE, ratio=(1.0, 1.0))}, "ratio="),
        ({"pipeline": imagenet_train(SIZE, flip=0.0)}, "flip=0.5, this loader has 0.0"),
        ({"pipeline": imagenet_train(SIZE, auto_augment="rand")}, "augment=None"),
        ({"pipeline": imagenet_train(SIZE, mean=(0.5, 0.5, 0.5))}, "mean="),
        ({"pipeline": imagenet_train(SIZE, exif="apply")}, "exif='ignore', this loader has 'apply'"),
        ({"pipeline": imagenet_train(SIZE, resample="pillow")}, "resample="),
        (
            {"pipeline": imagenet_train(SIZE, interpolation="bicubic")},
            "interpolation='bilinear', this loader has 'bicubic'",
        ),
        ({"pipeline": imagenet_eval(SIZE), "shuffle": True}, "crop='random_resized', this loader has 'center'"),
        ({"dtype": torch.float32}, "dtype='uint8', this loader has 'float32'"),
        ({"on_repaired": "replace"}, "on_repaired='count', this loader has 'replace'"),
    ],
)
def test_another_pipeline_is_refused_unless_allowed(photos: Path, settings: dict[str, Any], words: str) -> None:
    state = state_after(photos, 2)
    with open_loader(photos, **settings) as loader:
        with pytest.raises(LoaderError, match=r"E-STATE.*strict=False") as caught:
            loader.load_state_dict(state)
        assert words in caught.value.cause
        loader.load_state_dict(state, strict=False)
        assert (loader.epoch, loader.state_dict()["position"]) == (0, 8)


def test_the_fix_for_a_bad_file_resumes_the_stopped_run(photos: Path) -> None:
    """Trainers that load states themselves cannot pass strict=False."""
    state = state_after(photos, 2, on_repaired="raise")
    with open_loader(photos, on_bad_sample="replace", on_repaired="replace") as loader:
        loader.load_state_dict(state)
        assert loader.state_dict()["position"] == 8
        replaced = loader.state_dict()
    with (
        open_loader(photos) as loader,
        pytest.raises(LoaderError, match="on_bad_sample='replace', this loader has 'raise'"),
    ):
        loader.load_state_dict(replaced)


def test_settings_that_do_not_affect_pixels_may_change(photos: Path) -> None:
    state = state_after(photos, 2, on_bad_sample="replace", max_bad=1)
    changed = {
        "pipeline": imagenet_train(SIZE, max_pixels=10**9),
        "batch_size": 6,
        "max_bad": None,
        "drop_last": False,
        "on_repaired": "ignore",
    }
    with open_loader(photos, **changed, on_bad_sample="replace") as loader:
        loader.load_state_dict(state)
        assert loader.state_dict()["position"] == 8


def test_other_data_are_refused_even_without_strict(photos: Path, damaged: Path) -> None:
    state = state_after(photos, 2)
    for data, settings in ((damaged, {}), (photos, {"seed": 8})):
        with open_loader(data, **settings) as loader, pytest.raises(LoaderError, match="E-STATE"):
            loader.load_state_dict(state, strict=False)


def test_a_state_of_an_earlier_version_loads(photos: Path) -> None:
    state = state_after(photos, 2)
    del state["pipeline"], state["ledgers"]
    assert set(state) == {"fingerprint", "samples", "seed", "shuffle", "sampler", "version", "epoch", "position"}
    with open_loader(photos, pipeline=imagenet_train(32)) as loader:
        for kept in (state, {**state, "outline": "of the names"}):  # development versions saved one
            loader.load_state_dict(kept)
            assert loader.state_dict()["position"] == 8


# ---- NumPy numbers ----


def test_numpy_numbers_give_a_state_that_is_json(photos: Path) -> None:
    numbers: dict[str, Any] = {"seed": np.int64(7), "batch_size": np.int32(4), "rank": np.int64(0), "world_size": 1}
    with open_loader(photos, **numbers) as loader:
        loader.set_epoch(np.int64(2))  # type: ignore[arg-type]
        next(loader.batches())
        state = json.loads(json.dumps(loader.state_dict()))
    with open_loader(photos) as loader:
        loader.load_state_dict(state)
        assert loader.epoch == 2


# ---- the ledger ----

IN_ORDER: dict[str, Any] = {"on_bad_sample": "replace", "shuffle": False}


@pytest.mark.parametrize("stop", [1, 3, 5, 6])
def test_the_ledger_continues_after_a_resume(damaged: Path, stop: int) -> None:
    with open_loader(damaged, **IN_ORDER) as loader:
        assert len(list(loader)) == 6
        whole = loader.ledger(0).as_dict()
    assert whole["replaced"] == 4
    state = state_after(damaged, stop, **IN_ORDER)
    with open_loader(damaged, **IN_ORDER) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        if stop < 6:
            assert len(list(loader)) == 6 - stop
        assert loader.ledger(0).as_dict() == whole


def test_max_bad_counts_samples_replaced_before_the_resume(damaged: Path) -> None:
    state = state_after(damaged, 3, **IN_ORDER)  # three of the four bad samples
    with open_loader(damaged, **IN_ORDER, max_bad=3) as loader:
        loader.load_state_dict(state)
        with pytest.raises(LoaderError, match=r"E-MAXBAD.*4 bad samples"):
            list(loader)
    with open_loader(damaged, **IN_ORDER, max_bad=4) as loader:
        loader.load_state_dict(state)
        assert len(list(loader)) == 3


def test_an_epoch_that_is_served_again_is_counted_from_0(damaged: Path) -> None:
    with open_loader(damaged, **IN_ORDER, max_bad=4) as loader:
        for _ in range(2):
            loader.set_epoch(0)
            assert len(list(loader)) == 6
            assert (loader.ledger(0).planned, loader.ledger(0).replaced) == (NUM_PHOTOS, 4)


def test_a_rank_continues_its_ledger_and_those_of_removed_ranks(damaged: Path) -> None:
    ledgers = []
    for rank in range(2):
        state = state_after(damaged, 2, **IN_ORDER, rank=rank, world_size=2)
        ledgers += state["ledgers"]
    assert [ledger["rank"] for ledger in ledgers] == [0, 1]
    both = {**state, "ledgers": ledgers}
    for world_size, counts in ((1, [16]), (2, [8, 8]), (3, [8, 8, 0])):
        for rank, count in enumerate(counts):
            with open_loader(damaged, **IN_ORDER, rank=rank, world_size=world_size) as loader:
                loader.load_state_dict(both)
                assert loader.ledger(0).planned == count


@pytest.mark.parametrize(
    "change",
    [
        {"planned": 3},
        {"planned": "8"},
        {"planned": -8, "delivered": -8},
        {"bad": None},
        {"bad": []},
        {"bad": [{"sample": 1}] * 2},
        {"repaired": -1},
        {"repairs": [{"sample": 1}]},
        {"epoch": "0"},
        {"rank": "0"},
    ],
)
def test_an_invalid_ledger_is_refused(damaged: Path, change: dict[str, Any]) -> None:
    state = state_after(damaged, 1, **IN_ORDER)
    state["ledgers"][0].update(change)
    with open_loader(damaged, **IN_ORDER) as loader, pytest.raises(LoaderError, match=r"E-STATE.*ledger"):
        loader.load_state_dict(state)


def test_a_ledger_is_written_and_read_with_any_path() -> None:
    path = bytes(range(256)) + "é'\"\\n".encode()
    line = {"sample": 3, "code": "E-TRUNC", "cause": "cut", "path": ascii(path)[2:-1], "substitute": -1}
    repairs = {"repaired": 2, "repairs": [{**line, "code": "E-REPAIRED"}]}
    saved = {"epoch": 5, "planned": 9, "delivered": 8, "replaced": 1, "bad": [line], **repairs}
    ledger = EpochLedger.of(json.loads(json.dumps(saved)))
    assert ledger.bad[0].path == path
    assert ledger.as_dict() == saved
    assert ledger.line() == "planned=9 delivered=8 replaced=1 (E-TRUNC 1) repaired=2"
    for wrong in ({"sample": "3"}, {"sample": True}, {"substitute": None}, {"cause": 7}, {"code": "E-ODD"}):
        with pytest.raises(ValueError, match=r"\w"):
            EpochLedger.of({**saved, "bad": [{**line, **wrong}]})
