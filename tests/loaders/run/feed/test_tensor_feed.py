"""Batches on their way to a device: containers kept, copies in order and ahead, no wait for unfinished batches."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from types import MappingProxyType
from typing import Any

import pytest
import torch
from logged_copies import LoggedCopies
from numbered_dataset import Pair
from torch.nn.utils.rnn import pack_sequence

from penstock.loaders.run.feed.tensor_feed import TensorFeed, tensors_in, to_device

META = torch.device("meta")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda a, b: a,
        lambda a, b: (a, b),
        lambda a, b: [a, [b, "text"]],
        Pair,
        lambda a, b: {"images": a, "more": {"labels": b, "name": "x"}},
        lambda a, b: OrderedDict(labels=b, images=a),
        lambda a, b: MappingProxyType({"a": a}),
        lambda a, b: (a, None, 3, "text", b"bytes", (b, {1, 2})),
    ],
)
def test_containers_keep_their_types_and_other_values(wrap: Any) -> None:
    batch = wrap(torch.arange(3), torch.ones(2, 2))
    moved = to_device(batch, META)
    assert shape_of(moved) == shape_of(batch)
    assert all(tensor.is_meta for tensor in tensors_in(moved))
    assert len(list(tensors_in(moved))) == len(list(tensors_in(batch))) > 0
    assert not any(tensor.is_meta for tensor in tensors_in(batch))


def shape_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, (tuple, list)):
        return type(value), [shape_of(part) for part in value]
    if isinstance(value, (dict, MappingProxyType)):
        return type(value), [(key, shape_of(part)) for key, part in value.items()]
    return value


def test_a_mapping_keeps_other_attributes_of_its_type() -> None:
    batch: dict[str, Any] = defaultdict(list, images=torch.ones(1))
    moved = to_device(batch, META)
    assert moved["images"].is_meta
    assert moved["new"] == []
    assert not batch["images"].is_meta


def test_a_packed_sequence_is_moved_as_by_torch() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    moved = to_device({"text": packed}, torch.device("cpu"))["text"]
    assert type(moved) is type(packed)
    assert moved.data.tolist() == packed.data.tolist()


def feed_of(batches: list[Any], finished: list[int]) -> tuple[TensorFeed, LoggedCopies]:
    """A feed over `batches`; each request sets how many more are finished."""
    copies, source = LoggedCopies(), iter(batches)

    def take() -> Any:
        copies.log.append("take")
        return next(source)

    return TensorFeed(take, lambda: finished.pop(0), torch.device("cpu"), copies=copies), copies


def test_a_finished_batch_is_sent_ahead_and_an_unfinished_one_is_not_waited_for() -> None:
    feed, copies = feed_of([[torch.tensor([k]), torch.tensor([10 * k])] for k in range(3)], finished=[0, 1, 0])
    sent = ["take", "side", "mark", "back"]
    assert [int(part) for part in feed.next()] == [0, 0]
    assert copies.log == [*sent, ("hand over after mark 1", [[0], [0]])]
    copies.log.clear()
    assert [int(part) for part in feed.next()] == [1, 10]
    assert copies.log == [*sent, *sent, ("hand over after mark 2", [[1], [10]])]
    copies.log.clear()
    assert [int(part) for part in feed.next()] == [2, 20]
    assert copies.log == [("hand over after mark 3", [[2], [20]])]


def test_at_most_one_batch_is_ahead() -> None:
    feed, copies = feed_of([torch.tensor([k]) for k in range(5)], finished=[4, 4, 4, 7])
    for number in range(3):
        assert int(feed.next()) == number
    assert copies.log.count("take") == 4
    assert feed.ready() == 8


def test_lockable_memory_is_page_locked_and_keeps_values_and_strides() -> None:
    """A copy from pageable memory blocks the host until it is done."""
    images = torch.arange(48, dtype=torch.uint8).view(1, 4, 4, 3).permute(0, 3, 1, 2)
    sparse, owned = torch.eye(3).to_sparse(), torch.nn.Parameter(torch.ones(2))
    feed, copies = feed_of([{"images": images, "sparse": sparse, "owned": owned}], finished=[0])
    copies.hand_over = lambda event, tensors: None  # type: ignore[method-assign]
    batch = feed.next()
    assert len(copies.locked) == 1
    assert batch["images"] is copies.locked[0]
    assert torch.equal(batch["images"], images)
    assert batch["images"].stride() == images.stride()
    assert batch["sparse"] is sparse
    assert batch["owned"] is owned


@pytest.mark.gpu
@pytest.mark.parametrize("pinned", [False, True])
def test_on_cuda_batches_arrive_complete_and_one_is_ahead(pinned: bool) -> None:
    """Also those in pageable memory, which the source overwrites as soon as they are sent."""
    device = torch.device("cuda")
    memory = torch.empty(1 << 22, dtype=torch.int64)

    def made(k: int) -> Pair:
        images = torch.full((1 << 22,), k).pin_memory() if pinned else memory.fill_(k)
        return Pair(images, torch.tensor([k]))

    source = map(made, range(20))
    feed = TensorFeed(lambda: next(source), lambda: 1, device)
    for k in range(20):
        batch = feed.next()
        assert batch.images.is_cuda
        assert batch.labels.is_cuda
        torch.cuda._sleep(1_000_000)  # the consumer is still busy while the next copy runs
        assert int((batch.images != k).sum()) == 0
        assert int(batch.labels) == k
