"""mix: exact shares in every epoch, one stream for all engines and ranks, counts in the ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photo_folder import write_folder

from penstock.loaders import Blocks, LoaderError, create_loader, mix
from penstock.loaders.front.loader import Loader
from penstock.pipelines import imagenet_eval, imagenet_train

SIZES = (10, 25)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    first, second = (write_folder(tmp_path_factory.mktemp("photos"), size) for size in SIZES)
    return first, second


def open_loader(folders: tuple[Path, Path], shares: Any = (0.75, 0.25), **settings: Any) -> Loader:
    source = mix({"few": (folders[0], shares[0]), "many": (folders[1], shares[1])})
    settings = {"epoch_samples": 24, "batch_size": 8, "seed": 4, "workers": 0, "with_index": True, **settings}
    return create_loader(source, **{"pipeline": imagenet_train(16), "dtype": torch.uint8, **settings})


def indices_of(loader: Loader) -> list[int]:
    return [int(index) for _, _, indices in loader for index in indices]


def test_shares_are_exact_and_counted(folders: tuple[Path, Path]) -> None:
    with open_loader(folders, ([0.75, 0.5], 0.5)) as loader:
        for epoch, few in enumerate((14, 12, 12)):
            indices = indices_of(loader)
            assert len(indices) == 24
            assert sum(index < SIZES[0] for index in indices) == few
            assert loader.ledger(epoch).sources == {"few": few, "many": 24 - few}
            assert f"few={few} many={24 - few}" in loader.ledger(epoch).line()


def test_every_engine_and_ranks_serve_one_stream(folders: tuple[Path, Path]) -> None:
    with open_loader(folders) as loader:
        expected = [(indices.tolist(), images.sum().item()) for images, _, indices in loader]
    for settings in ({"workers": 2, "workers_are": "threads"}, {"workers": 2, "workers_are": "processes"}):
        with open_loader(folders, **settings) as loader:
            assert [(indices.tolist(), images.sum().item()) for images, _, indices in loader] == expected
    parts = []
    for rank in range(2):
        with open_loader(folders, batch_size=4, rank=rank, world_size=2) as loader:
            parts.append([indices.tolist() for _, _, indices in loader])
    assert [a + b for a, b in zip(*parts, strict=True)] == [indices for indices, _ in expected]


def test_a_resume_continues_the_counts(folders: tuple[Path, Path]) -> None:
    with open_loader(folders) as loader:
        whole = indices_of(loader) + indices_of(loader)
    with open_loader(folders) as loader:
        batches = iter(loader)
        before = [int(index) for _ in range(2) for index in next(batches)[2]]
        state = json.loads(json.dumps(loader.state_dict()))
    with open_loader(folders) as loader:
        loader.load_state_dict(state)
        assert before + indices_of(loader) + indices_of(loader) == whole
        assert loader.ledger(0).sources == {"few": 18, "many": 6}
    with open_loader(folders, (0.5, 0.5)) as other, pytest.raises(LoaderError, match="saved with other shares"):
        other.load_state_dict(state)


def test_counts_of_numbered_parts_continue_after_a_resume(folders: tuple[Path, Path]) -> None:
    def loader() -> Loader:
        source = mix({number: (folder, 0.5) for number, folder in enumerate(folders)})  # type: ignore[misc]
        return create_loader(source, pipeline=imagenet_train(16), epoch_samples=24, batch_size=8, workers=0)

    with loader() as first, loader() as again:
        next(iter(first))
        again.load_state_dict(json.loads(json.dumps(first.state_dict())))
        list(again)
        assert again.ledger(0).sources == {"0": 12, "1": 12}


def test_an_evaluation_serves_each_sample_once(folders: tuple[Path, Path]) -> None:
    with open_loader(folders, pipeline=imagenet_eval(16), epoch_samples=None) as loader:
        assert indices_of(loader) == list(range(sum(SIZES)))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "mix takes a dict"),
        ([("a", 1)], "mix takes a dict"),
        ({"a": "folder"}, "mix takes a dict"),
        ({1: (0, 1), "1": (0, 1)}, "must differ as text"),
        ({"a": (0, 0.0)}, "must not all be 0"),
        ({"a": (0, [1, 0])}, "for epoch 1"),
        ({"a": (0, -1)}, "at least 0"),
        ({"a": (0, float("nan"))}, "finite"),
        ({"a": (0, "0.5")}, "must be a number"),
        ({"a": (0, [])}, "must be a number"),
        ({"a": (0, True)}, "must be a number"),
    ],
)
def test_impossible_shares_are_refused(parts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mix(parts)


def test_a_mixture_cannot_be_shuffled_by_blocks(folders: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match="cannot be shuffled by blocks"):
        open_loader(folders, shuffle=Blocks())
    with pytest.raises(ValueError, match="weights draw samples at random"):
        open_loader(folders, weights=np.ones(sum(SIZES)))
