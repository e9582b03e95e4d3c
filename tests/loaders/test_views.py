"""Several views of each image: each as its own pipeline makes it, from one read, on all backends and after resumes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from memory_source import MemorySource
from odd_images import jpeg, textured
from PIL import Image

from penstock.loaders import LoaderError, create_loader
from penstock.loaders.front.loader import Loader
from penstock.pipelines import Augmentations, ImagePipeline, imagenet_eval, imagenet_train
from penstock.pipelines.plan.crops import plan_batch

NUM_PHOTOS, BATCH, SEED = 30, 6, 5
VIEWS = [imagenet_train(32), imagenet_train(32), imagenet_train((16, 24), scale=(0.05, 0.3)), imagenet_eval(20)]


def open_loader(source: Any, **settings: Any) -> Loader:
    usual = {"pipeline": VIEWS, "batch_size": BATCH, "dtype": torch.uint8, "seed": SEED, "workers": 0}
    return create_loader(source, **{**usual, **settings})


def test_a_view_equals_the_result_of_its_pipeline_alone(photos: Path) -> None:
    """View 0 is the stream of a single view; the others are drawn separately and differ from each other."""
    with open_loader(photos) as loader:
        batch = next(loader.batches())
    assert (batch.windows.shape, batch.flips.shape) == ((BATCH, len(VIEWS), 4), (BATCH, len(VIEWS)))
    with open_loader(photos, pipeline=VIEWS[0]) as loader:
        alone = next(loader.batches())
    assert torch.equal(alone.images, batch.images[0])
    assert np.array_equal(alone.windows, batch.windows[:, 0])
    with open_loader(photos, pipeline=VIEWS[3], shuffle=True) as loader:  # it draws nothing
        assert torch.equal(next(loader.batches()).images, batch.images[3])
    assert not (batch.windows[:, 0] == batch.windows[:, 1]).all(1).any()
    sides = np.array([size_of(photos, sample) for sample in batch.index.tolist()]).T
    for view, pipeline in enumerate(VIEWS):
        drawn = plan_batch(pipeline, SEED, 0, batch.index, *sides, view=view)
        assert np.array_equal(drawn.windows, batch.windows[:, view])
        assert np.array_equal(drawn.flips, batch.flips[:, view])


def size_of(folder: Path, sample: int) -> tuple[int, int]:
    with Image.open(sorted(folder.rglob("*.jpg"))[sample]) as image:
        return image.size


class Counting(MemorySource):
    """Counts its reads."""

    reads = 0

    def read(self, index: int) -> Any:
        self.reads += 1
        return super().read(index)


@pytest.mark.parametrize("policy", ["raise", "replace"])
def test_an_image_is_read_once_and_a_bad_one_is_counted_once(policy: str) -> None:
    items: list[Any] = [jpeg(textured(40, 50 + number), quality=90) for number in range(12)]
    items[7] = items[7][:200]
    source = Counting(items)
    with open_loader(source, on_bad_sample=policy, shuffle=False, drop_last=False, max_bad=1) as loader:
        if policy == "raise":
            next(batches := loader.batches())
            assert source.reads == BATCH
            with pytest.raises(LoaderError) as caught:
                next(batches)
            assert (caught.value.code, caught.value.sample) == ("E-TRUNC", 7)
            return
        _, batch = loader.batches()
        assert loader.ledger().as_dict()["bad"] == loader.ledger().as_dict()["bad"][:1] != []
    assert batch.index.tolist() == [6, 8, 8, 9, 10, 11]
    for view, images in enumerate(batch.images):
        random = VIEWS[view].random
        assert torch.equal(images[1], images[2]) or random
        assert images[1].any()
    assert source.reads == len(items) + 1


def test_augmentations_of_a_view_are_drawn_separately(photos: Path) -> None:
    whole = ImagePipeline(size=(16, 16), crop="full", flip=0.0)
    erased = replace(whole, augment=Augmentations(erasing=1.0))
    with open_loader(photos, pipeline=[whole, erased, erased], shuffle=False) as loader:
        plain, first, second = next(loader.batches()).images
    assert not torch.equal(plain, first)
    assert not torch.equal(first, second)
