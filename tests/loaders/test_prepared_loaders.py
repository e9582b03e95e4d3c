"""Programs such as Ray Train rebuild each DataLoader without a DistributedSampler; they leave our loader unchanged."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler, IterableDataset, SequentialSampler, TensorDataset

from penstock.loaders import DataLoader, create_loader
from penstock.loaders.front.loader import Loader
from penstock.pipelines import ImagePipeline, imagenet_eval

COUNT, BATCH = 20, 4


class Moved(TorchDataLoader[Any]):
    """A stand-in for the wrapper of Ray Train: it copies the attributes and is one batch ahead."""

    def __init__(self, base: Any) -> None:
        self.__dict__.update(getattr(base, "__dict__", {}))
        self._dataloader, self.device = base, torch.device("cpu")

    def __len__(self) -> int:
        return len(self._dataloader)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        batches = iter(self._dataloader)
        ahead = next(batches, None)
        while ahead is not None:
            batch, ahead = ahead, next(batches, None)
            yield tuple(part.to(self.device) for part in batch)


def prepare_data_loader(loader: Any, world_size: int, rank: int) -> Any:
    """A stand-in for ray.train.torch.prepare_data_loader: it reads the same attributes and rebuilds the same way."""
    is_shared = isinstance(loader.sampler, DistributedSampler) or isinstance(loader.dataset, IterableDataset)
    if world_size > 1 and not is_shared:
        own = DistributedSampler(
            loader.dataset,
            num_replicas=world_size,
            rank=rank,
            shuffle=not isinstance(loader.sampler, SequentialSampler),
        )
        names = "dataset batch_size num_workers collate_fn pin_memory drop_last timeout worker_init_fn generator"
        loader = TorchDataLoader(**{name: getattr(loader, name) for name in names.split()}, shuffle=False, sampler=own)
    return Moved(loader)


def open_loader(**options: Any) -> Loader:
    data = np.zeros((COUNT, 4, 4, 3), np.uint8), np.arange(COUNT)
    defaults: dict[str, Any] = {"pipeline": ImagePipeline(size=(4, 4)), "batch_size": BATCH, "workers": 0, "seed": 3}
    return create_loader(data, **{**defaults, **options})


def labels_of(batches: Any) -> list[list[int]]:
    return [batch[1].tolist() for batch in batches]


@pytest.mark.parametrize("pipeline", [ImagePipeline(size=(4, 4)), imagenet_eval(4)], ids=["training", "evaluation"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_prepared_loader_serves_what_the_loader_serves(world_size: int, pipeline: ImagePipeline) -> None:
    served: list[int] = []
    for rank in range(world_size):
        options = {"pipeline": pipeline, "rank": rank, "world_size": world_size, "drop_last": False}
        with open_loader(**options) as plain, open_loader(**options) as loader:
            prepared = prepare_data_loader(loader, world_size, rank)
            assert len(prepared) == len(plain)
            for epoch in range(2):
                loader.sampler.set_epoch(epoch)  # as Ray's users do; the loader exists already
                steps = labels_of(prepared)
                assert steps == labels_of(plain)
            served += [label for step in steps for label in step if label >= 0]
    assert sorted(served) == list(range(COUNT))


def test_the_drop_in_loader_is_rebuilt_from_its_parts() -> None:
    data = TensorDataset(torch.zeros(COUNT), torch.arange(COUNT))
    served = []
    for rank in range(2):
        served += labels_of(prepare_data_loader(DataLoader(data, BATCH, shuffle=True, seed=1), 2, rank))
    assert sorted(label for step in served for label in step) == list(range(COUNT))


def test_a_loaders_sampler_has_a_length_but_no_indices() -> None:
    with open_loader(rank=1, world_size=2) as loader:
        assert len(loader.sampler) == COUNT // 2 // BATCH * BATCH
        assert (loader.sampler.rank, loader.sampler.num_replicas) == (1, 2)
        with pytest.raises(TypeError, match="iterate over the loader"):
            list(loader.sampler)


def test_an_epoch_that_the_loader_does_not_serve_next_warns() -> None:
    with open_loader() as loader:
        with pytest.warns(UserWarning, match=r"serves epoch 0 next; call loader.set_epoch\(2\)"):
            loader.sampler.set_epoch(2)
        loader.set_epoch(2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loader.sampler.set_epoch(2)
    with open_loader(shuffle=False) as loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.sampler.set_epoch(5)  # the order is the same in all epochs
