"""Transfer of fields to a device: pinned, on the side stream, handed over with the images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from strict_copies import META, StrictCopies

from penstock.loaders.make.engine_contract import HostBatch
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.run.feed.batch_feed import DeviceFeed
from penstock.pipelines import imagenet_train
from penstock.pipelines.batch.stage import BatchStage
from penstock.pipelines.fields.ragged import Ragged
from penstock.pipelines.plan.crops import BatchPlan

BATCH, SIZE = 4, 8


def host_batch() -> HostBatch:
    """A batch without a sample in its third row."""
    index = np.array([3, 4, -1, 5])
    lengths = np.array([1, 0, 0, 2])
    return HostBatch(
        cursor=Cursor(0, 0),
        images=torch.zeros((BATCH, SIZE, SIZE, 3), dtype=torch.uint8),
        index=index,
        labels=index,
        plan=BatchPlan(*(np.zeros(BATCH, np.int32) for _ in BatchPlan._fields)),
        bad=(),
        produce_s=0.0,
        fields={
            "mask": np.arange(BATCH * 6, dtype=np.uint8).reshape(BATCH, 2, 3),
            "boxes": Ragged(lengths, (np.arange(12, dtype=np.float32).reshape(3, 4),)),
            "name": ["a", "b", "", "c"],
        },
    )


@pytest.mark.parametrize("pad", [True, False])
def test_fields_are_pinned_and_handed_over(pad: bool) -> None:
    copies, pinned = StrictCopies(), []
    made = copies.pinned
    copies.pinned = lambda like: pinned.append(tuple(like.shape)) or made(like)  # type: ignore[func-returns-value]
    handed: list[tuple[int, ...]] = []
    hand_over = copies.hand_over

    def note(event: int, tensors: tuple[torch.Tensor, ...]) -> None:
        hand_over(event, tensors)
        handed.extend(tuple(tensor.shape) for tensor in tensors[2:])

    copies.hand_over = note  # type: ignore[method-assign]
    stage = BatchStage(imagenet_train(SIZE), torch.float32, META)
    feed = DeviceFeed(lambda: replace(host_batch()), lambda: 0, stage, pad=pad, copies=copies)
    batch = feed.next()
    rows = 4 if pad else 3
    assert batch.fields["mask"].shape == (rows, 2, 3)
    assert batch.fields["mask"].is_meta
    shapes = [tuple(boxes.shape) for boxes in batch.fields["boxes"]]
    assert shapes == [(1, 4), (0, 4), *([(0, 4)] * pad), (2, 4)]
    assert handed == [(rows, 2, 3), *shapes]
    assert {(rows, 2, 3), (3, 4)} <= set(pinned)
    feed.close()
