"""The operations for devices: bit-exact with the CPU versions, with few kernels and little memory traffic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from augment_images import images_of, values_of
from kernel_count import KernelCount

from penstock.pipelines.augmentations import Augmentations
from penstock.pipelines.batch import augment as rounds
from penstock.pipelines.batch import blur, color, device_ops, geometry, interpolate, lookup_tables, native_ops
from penstock.pipelines.batch.stage import BatchStage
from penstock.pipelines.plan.augmentations import BatchKey, Op, plan_augmentations
from penstock.pipelines.spec import ImagePipeline

META = torch.device("meta")
FULL = Augmentations(auto_augment="rand", color_jitter=(0.4, 0.4, 0.4, 0.1), erasing=0.25, mixup=0.2, cutmix=1.0)
TIMM = Augmentations(auto_augment="timm", rand_magnitude_std=0.5, three_augment=True, solarize=0.5, blur=0.5)
SIMCLR = Augmentations(color_jitter=(0.8, 0.8, 0.8, 0.2), color_jitter_probability=0.8, grayscale=0.2, blur=0.5)
PAIRS = {
    Op.COLOR: (color.adjust_color, device_ops.adjust_color),
    Op.SHARPNESS: (color.adjust_sharpness, device_ops.adjust_sharpness),
    Op.HUE: (color.adjust_hue, device_ops.adjust_hue),
    Op.BLUR: (blur.blur_each, blur.blur_together),
}


@pytest.mark.parametrize("size", [(41, 56), (2, 5), (3, 3), (1, 1)], ids=str)
@pytest.mark.parametrize("op", PAIRS, ids=lambda op: op.name)
def test_each_operation_equals_the_cpus(op: Op, size: tuple[int, int]) -> None:
    images, values = torch.from_numpy(images_of(100, size)), values_of(op, 100)
    results = []
    for adjust in PAIRS[op]:
        results.append(images.clone())
        adjust(results[-1], values)
    assert torch.equal(*results)
    assert torch.equal(results[0], images) == (
        (op is Op.SHARPNESS and min(size) < 3) or (op is Op.BLUR and max(size) < 2)
    )


def test_hue_and_saturation_of_every_kind_of_pixel_equal_the_cpus() -> None:
    levels = torch.arange(0, 256, 5, dtype=torch.uint8)
    colours = torch.cartesian_prod(levels, levels, levels).view(1, 104, -1, 3)
    for op in (Op.COLOR, Op.HUE):
        for value in values_of(op, 100)[::20]:
            one, two = colours.clone(), colours.clone()
            PAIRS[op][0](one, np.array([value]))
            PAIRS[op][1](two, np.array([value]))
            assert torch.equal(one, two)


def test_more_images_than_a_byte_can_number() -> None:
    images, values = torch.from_numpy(images_of(300, (4, 5))), values_of(Op.COLOR, 300)
    one, two = images.clone(), images.clone()
    color.adjust_color(one, values)
    device_ops.adjust_color(two, values)
    assert torch.equal(one, two)


@pytest.mark.parametrize("augment", [FULL, TIMM], ids=["full", "timm"])
@pytest.mark.parametrize("size", [(33, 40), (40, 33)], ids=str)
def test_a_whole_plan_equals_the_cpus(
    size: tuple[int, int], augment: Augmentations, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = torch.from_numpy(images_of(200, size))
    plan = plan_augmentations(augment, size, BatchKey(3, 1, np.arange(200)))
    expected = rounds.augment(images, plan)
    monkeypatch.setattr(rounds, "_ON_CPU", rounds._ON_DEVICE)
    monkeypatch.setattr(native_ops, "native_library", lambda: None)  # as on a device
    monkeypatch.setattr(geometry, "_compute_places", device_ops.compute_places)
    monkeypatch.setattr(lookup_tables, "_ON_LEVELS", {})
    for module in (rounds, interpolate):
        monkeypatch.setattr(module, "_CPU_PIXELS", module._DEVICE_PIXELS)
    assert torch.equal(rounds.augment(images, plan), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_one_kernel_normalises_all_levels_as_the_cpu_does(dtype: torch.dtype) -> None:
    """Every level in every channel, bit-exact."""
    images = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).repeat(1, 1, 1, 3)
    for mean, std in (((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), ((-1.0, 0.25, 2.0), (0.01, 3.0, 0.7))):
        stage = BatchStage(ImagePipeline(size=(16, 16), mean=mean, std=std), dtype, torch.device("cpu"))
        with KernelCount() as count:
            found = stage._normalise_on_device(images, None)
        assert count.kernels == {"addcmul": 1}
        assert count.num_bytes == images.numel() * (1 + dtype.itemsize) + 2 * 3 * 4
        assert torch.equal(found, stage._normalise_on_cpu(images, None))
        assert not torch.equal(found.flip(-1), stage._normalise_on_cpu(images, None))


# The cost of a batch of 256 of 224 x 224 on a device, in kernels (including copies to it) and bytes. Before there were
# kernels for devices: 858 and 19.4e9 for the full recipe in bfloat16, 4 and 0.73e9 for normalising alone.
BUDGETS = {
    "normalised": (Augmentations(), torch.bfloat16, 1, 0.12e9),
    "normalised, float32": (Augmentations(), torch.float32, 1, 0.20e9),
    "rand": (Augmentations(auto_augment="rand"), torch.bfloat16, 170, 2.0e9),
    "jitter": (Augmentations(color_jitter=(0.4, 0.4, 0.4, 0.1)), torch.bfloat16, 176, 4.0e9),
    "full, bfloat16": (FULL, torch.bfloat16, 385, 6.7e9),
    "full, float32": (FULL, torch.float32, 385, 7.1e9),
    "timm": (Augmentations(auto_augment="timm", rand_magnitude_std=0.5), torch.bfloat16, 1030, 4.7e9),
    "views": (SIMCLR, torch.bfloat16, 340, 13.0e9),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_the_device_cost_of_a_batch_is_within_its_budget(name: str) -> None:
    augment, dtype, kernels, num_bytes = BUDGETS[name]
    stage = BatchStage(ImagePipeline(augment=augment), dtype, META, num_classes=1000)
    images = torch.empty((256, 224, 224, 3), dtype=torch.uint8, device=META)
    labels = torch.zeros(256, dtype=torch.int64, device=META)
    plan = stage.plan(BatchKey(0, 0, np.arange(256)))
    for _ in range(2):  # tables are made at the first batch
        with KernelCount() as count:
            stage(images, plan=plan)
            stage.targets(labels, plan)
    assert count.num_kernels <= kernels, count.kernels
    assert count.num_bytes <= num_bytes, count.bytes


@pytest.mark.parametrize(("augment", "first"), [(FULL, 1), (TIMM, 3)], ids=["full", "timm"])
def test_no_batch_after_the_first_waits_for_the_device(augment: Augmentations, first: int) -> None:
    """Cached tables are copied by a blocking call: they must not depend on a batch's contents.

    Except in their length, a power of two: the number of images with the same operation varies more with timm's policy.
    """

    class Waiting(KernelCount):
        """Records copies that do not use to_device: only to_device passes non_blocking."""

        waited = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            upload = func.overloadpacket.__name__ == "_to_copy" and args[0].device.type == "cpu"
            self.waited += upload and not (kwargs or {}).get("non_blocking")
            return super().__torch_dispatch__(func, types, args, kwargs)

    stage = BatchStage(ImagePipeline(size=(24, 20), augment=augment), torch.float16, META, num_classes=9)
    images = torch.empty((256, 24, 20, 3), dtype=torch.uint8, device=META)
    for function in (color.constants, color.hsv_tables, lookup_tables._offsets, lookup_tables._levels):
        function.cache_clear()
    counts = []
    for number in range(5):
        with Waiting() as calls:
            stage(images, plan=stage.plan(BatchKey(0, number, np.arange(256))))
        counts.append(calls.waited)
    assert counts[0] > 0
    assert counts[first:] == [0] * (5 - first)
