"""Masks and points move with the image's pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from penstock.pipelines.augmentations import Augmentations
from penstock.pipelines.batch.augment import augment
from penstock.pipelines.plan import moves
from penstock.pipelines.plan.augmentations import BatchKey, Op, plan_augmentations
from penstock.pipelines.plan.moves import move_picture

SIZE, NUMBER = (33, 48), 300
RAND = Augmentations(auto_augment="rand", rand_ops=3, rand_magnitude=20)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int32])
@pytest.mark.parametrize("native", [True, False])
def test_a_mask_moves_like_its_image(native: bool, kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only operations that move pixels change this image: a mask in three channels, black outside."""
    plan = plan_augmentations(RAND, SIZE, BatchKey(1, 2, np.arange(NUMBER)))
    plan = plan._replace(ops=np.where(plan.ops <= Op.ROTATE, plan.ops, Op.IDENTITY).astype(np.int8))
    masks = np.random.default_rng(0).integers(1, 256, (NUMBER, *SIZE)).astype(np.uint8)
    images = augment(torch.from_numpy(masks[..., None].repeat(3, -1)), plan).numpy()
    if not native:
        monkeypatch.setattr(moves, "native_library", lambda: None)
    found = np.stack([move_picture(mask.astype(kind), plan, row, 0) for row, mask in enumerate(masks)])
    assert found.dtype == kind
    assert (found == images[..., 0]).all()
    assert 0.1 < (found != masks).mean() < 0.9
    assert (move_picture(masks[0] * 0, plan, 0, 255) == 255).sum() == (found[0] == 0).sum()
