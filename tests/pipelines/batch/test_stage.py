"""The batch stage: values compared with float64, memory layout, and the calls it makes."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from augment_images import Calls

from penstock.pipelines.augmentations import Augmentations
from penstock.pipelines.batch.augment import augment
from penstock.pipelines.batch.erase_and_mix import erase, mix
from penstock.pipelines.batch.stage import DTYPES, MEMORY_FORMATS, BatchStage, PatchStage
from penstock.pipelines.batch.target_stage import TargetStage
from penstock.pipelines.fields.field_kinds import TargetRules
from penstock.pipelines.plan.augmentations import BatchKey
from penstock.pipelines.spec import ImagePipeline

STAGE = sys.modules[BatchStage.__module__]
CPU = torch.device("cpu")
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
SIZE = (20, 36)
RECIPES = {
    "imagenet": ImagePipeline(size=SIZE),
    "half": ImagePipeline(size=SIZE, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
    "none": ImagePipeline(size=SIZE, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
    "odd": ImagePipeline(size=SIZE, mean=(-1.0, 0.25, 2.0), std=(0.01, 3.0, 0.7)),
}


def batch_of(number: int, size: tuple[int, int] = SIZE) -> torch.Tensor:
    """Return uint8 [number, height, width, 3] with each of the 256 values in each channel."""
    values = np.random.default_rng(number).integers(0, 256, (number, *size, 3), np.uint8)
    flat = values.reshape(-1, 3)
    flat[:256] = np.arange(256, dtype=np.uint8)[: len(flat), None]
    return torch.from_numpy(values)


def reference(images: torch.Tensor, pipeline: ImagePipeline) -> torch.Tensor:
    """Return the result of torchvision's ToTensor and Normalize in float64: [batch, 3, height, width]."""
    mean, std = (torch.tensor(v, dtype=torch.float64) for v in (pipeline.mean, pipeline.std))
    return ((images.to(torch.float64) / 255 - mean) / std).permute(0, 3, 1, 2)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_values_are_those_of_float64(dtype: torch.dtype, name: str) -> None:
    pipeline, images = RECIPES[name], batch_of(3)
    found = BatchStage(pipeline, dtype, CPU)(images)
    expected = reference(images, pipeline)
    assert (found.dtype, found.shape) == (dtype, (3, 3, *SIZE))
    # float32 rounds the product, the sum and the two constants; float16 and bfloat16 round once more
    unit = {torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
    constants = max(abs(m) / s + 1 / s for m, s in zip(pipeline.mean, pipeline.std, strict=True))
    error = (found.to(torch.float64) - expected).abs()
    assert (error <= 1.01 * unit * expected.abs() + 4 * 2.0**-24 * constants).all()


def test_uint8_is_the_batch_itself() -> None:
    images = batch_of(4)
    found = BatchStage(RECIPES["imagenet"], torch.uint8, CPU)(images)
    assert found.data_ptr() == images.data_ptr()
    assert found.untyped_storage().data_ptr() == images.untyped_storage().data_ptr()
    assert torch.equal(found, images.permute(0, 3, 1, 2))
    images[2, 1, 0, 1] ^= 0xFF
    assert found[2, 1, 1, 0] == images[2, 1, 0, 1]


def test_patches_are_normalised_like_images_and_can_be_written_to_given_memory() -> None:
    images = batch_of(3)
    patches = images.reshape(3, 20, 36 * 3)  # each line of an image as one patch
    memory = torch.full((5, *patches.shape[1:]), 7.0)
    found = PatchStage(RECIPES["odd"], torch.float32, CPU)(patches, out=memory[1:4])
    assert found.data_ptr() == memory[1].data_ptr()
    as_images = BatchStage(RECIPES["odd"], torch.float32, CPU)(images)
    assert torch.equal(found.view(images.shape), as_images.permute(0, 2, 3, 1))
    assert (memory[[0, 4]] == 7).all()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.int8, torch.bool])
def test_other_dtypes_are_rejected_with_the_list(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=r"uint8.*float32.*float16.*bfloat16.*got torch\."):
        BatchStage(RECIPES["imagenet"], dtype, CPU)


@pytest.mark.parametrize("dtype", FLOATS)
def test_samples_do_not_mix(dtype: torch.dtype) -> None:
    stage, images = BatchStage(RECIPES["imagenet"], dtype, CPU), batch_of(5)
    whole = stage(images)
    assert stage(images[:0]).shape == (0, 3, *SIZE)
    assert torch.equal(torch.cat([stage(images[i : i + 1]) for i in range(5)]), whole)
    assert torch.equal(stage(images[::2]), whole[::2])  # every second sample: a view with gaps


# ---- augmentations ----

OPS = Augmentations(auto_augment="rand", color_jitter=(0.4, 0.4, 0.4, 0.1))
FULL = replace(OPS, erasing=0.5, mixup=0.4, cutmix=1.0)


def augmenting(augment: Augmentations, dtype: torch.dtype, device: torch.device = CPU) -> BatchStage:
    return BatchStage(replace(RECIPES["imagenet"], augment=augment), dtype, device, num_classes=4)


def key_of(number: int) -> BatchKey:
    return BatchKey(5, 2, np.arange(number))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_pipeline_without_augmentations_makes_no_extra_calls(dtype: torch.dtype) -> None:
    stage, images, labels = BatchStage(RECIPES["imagenet"], dtype, CPU), batch_of(3), torch.arange(3)
    plan = stage.plan(key_of(3))
    assert plan is None
    assert stage.targets(labels, plan) is labels
    out = torch.empty((3, *SIZE, 3), dtype=dtype)
    stage(images, out, plan)  # the first batch of a width makes the tables of its rows
    with Calls() as calls:
        stage(images, out, plan)
    conversion = ["copy_.default", "addcmul.out"] + ["copy_.default"] * (dtype != torch.float32)
    views = {"view.default", "_unsafe_view.default", "permute.default"}
    views |= {"split.Tensor", "slice.Tensor", "empty.memory_format"}
    chunks = -(-3 * SIZE[0] // (32768 // (SIZE[1] * 3)))
    assert [name for name in calls.names if name not in views] == conversion * chunks * (dtype != torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_order_is_operations_normalising_erasing_mixing(dtype: torch.dtype) -> None:
    images, full = batch_of(8), FULL if dtype != torch.uint8 else replace(FULL, mixup=0.0, cutmix=0.0)
    stage, pipeline = augmenting(full, dtype), RECIPES["imagenet"]
    plan = stage.plan(key_of(8))
    assert plan is not None
    expected = BatchStage(pipeline, dtype, CPU)(augment(images, plan)).permute(0, 2, 3, 1).clone()
    mean_colour = torch.tensor(pipeline.mean).mul(255).round()
    erase(expected, plan.erased, (mean_colour if dtype == torch.uint8 else torch.zeros(3)).to(dtype))
    if plan.mixing is not None:
        mix(expected, plan.mixing)
    memory = torch.empty((8, *SIZE, 3), dtype=dtype)
    found = stage(images, memory, plan)
    assert torch.equal(found, expected.permute(0, 3, 1, 2))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, batch_of(8))  # unchanged
    if dtype != torch.uint8:
        assert found.data_ptr() == memory.data_ptr()
    assert torch.equal(stage(images, None, plan), found)


def test_targets_are_soft_with_mixing_and_labels_without() -> None:
    labels = torch.tensor([0, 1, 2, 3, -1, 1])
    stage = augmenting(FULL, torch.float32)
    plan = stage.plan(BatchKey(5, 2, np.array([4, 5, 6, 7, -1, 8])))
    targets = stage.targets(labels, plan)
    assert (targets.shape, targets.dtype) == ((6, 4), torch.float32)
    assert targets.sum(1).tolist() == pytest.approx([1, 1, 1, 1, 0, 1])
    assert targets[5].tolist() == [0, 1, 0, 0]
    for hard in (OPS, Augmentations(erasing=0.5)):
        other = augmenting(hard, torch.float32)
        assert other.targets(labels, other.plan(key_of(6))) is labels


def test_impossible_settings_are_rejected() -> None:
    with pytest.raises(ValueError, match="mixing needs a float dtype"):
        augmenting(Augmentations(mixup=0.2), torch.uint8)
    with pytest.raises(ValueError, match="num_classes"):
        BatchStage(replace(RECIPES["imagenet"], augment=FULL), torch.float32, CPU)
    with pytest.raises(ValueError, match="needs the plan"):
        augmenting(OPS, torch.float32)(batch_of(2))


TOLERANCES = {torch.uint8: 0.0, torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("device", [CPU, pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)], ids=str)
@pytest.mark.parametrize("augment", [Augmentations(), FULL], ids=["plain", "augmented"])
@pytest.mark.parametrize("dtype", [torch.uint8, *FLOATS])
def test_a_device_returns_what_the_cpu_does(dtype: torch.dtype, augment: Augmentations, device: torch.device) -> None:
    images, chosen = batch_of(8), augment if dtype != torch.uint8 else replace(augment, mixup=0.0, cutmix=0.0)
    plan = augmenting(chosen, dtype).plan(key_of(8))
    here = augmenting(chosen, dtype)(images, None, plan)
    there = augmenting(chosen, dtype, device)(images.to(device), None, plan)
    assert (there.device.type, there.dtype, there.stride()) == (device.type, dtype, here.stride())
    assert (there.cpu().to(torch.float64) - here.to(torch.float64)).abs().max() <= TOLERANCES[dtype]


# ---- gradients ----


AFTER_PIXELS = {
    "normalise": Augmentations(),
    "erase": Augmentations(erasing=1.0),
    "mixup": Augmentations(mixup=8.0),  # shares near a half
    "cutmix": Augmentations(cutmix=1.0),
    "all": Augmentations(erasing=0.5, mixup=8.0, cutmix=1.0),
}


@pytest.mark.parametrize("name", AFTER_PIXELS)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    """In float64, with respect to the levels; earlier operations work on integer levels and do not have gradients."""
    pipeline = ImagePipeline(size=(6, 7), augment=AFTER_PIXELS[name])
    exact, usual = (BatchStage(pipeline, dtype, CPU, num_classes=3) for dtype in (torch.float64, torch.float32))
    plan, pixels = exact.plan(BatchKey(0, 0, np.arange(2))), batch_of(2, (6, 7))
    levels = pixels.to(torch.float64).requires_grad_()
    assert plan is None or plan.erased.any() == ("erase" in name) or name == "all"
    assert torch.autograd.gradcheck(lambda images: exact(images, plan=plan), (levels,))  # fast_mode tolerates too much
    torch.testing.assert_close(exact(levels, plan=plan).to(torch.float32), usual(pixels, plan=plan))


def test_operations_on_pixels_reject_levels_with_gradients() -> None:
    stage = BatchStage(ImagePipeline(size=SIZE, augment=Augmentations(auto_augment="rand")), torch.float64, CPU)
    levels = batch_of(2).to(torch.float64).requires_grad_()
    with pytest.raises(ValueError, match="no gradient"):
        stage(levels, plan=stage.plan(BatchKey(0, 0, np.arange(2))))


# ---- one channel, and 16 bits ----

GREY = ImagePipeline(size=SIZE, channels=1, mean=(0.3,), std=(0.2,))
BRIGHT = Augmentations(color_jitter=(0.4, 0.4, 0.0, 0.0), auto_augment="rand", erasing=0.5)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16])
@pytest.mark.parametrize("augment", [Augmentations(), BRIGHT, replace(BRIGHT, mixup=0.4, cutmix=1.0)])
def test_one_channel_equals_each_of_three_equal_channels(augment: Augmentations, dtype: torch.dtype) -> None:
    if augment.mixes and dtype == torch.uint8:
        augment = replace(augment, mixup=0.0, cutmix=0.0)
    colour = ImagePipeline(size=SIZE, mean=GREY.mean * 3, std=GREY.std * 3, augment=augment)
    one, three = (BatchStage(p, dtype, CPU, num_classes=4) for p in (replace(GREY, augment=augment), colour))
    images = batch_of(8)[..., :1].contiguous()
    plan = one.plan(key_of(8))
    found, expected = one(images, plan=plan), three(images.repeat(1, 1, 1, 3), plan=plan)
    assert (found.shape, found.dtype) == ((8, 1, *SIZE), dtype)
    assert torch.equal(found, expected[:, :1])
    assert torch.equal(expected[:, 1:2], expected[:, 2:])


@pytest.mark.parametrize("seed", range(12))
def test_jobs_write_what_a_call_returns(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For random settings, sizes of batches and of jobs; the jobs are done in a random order, by themselves."""
    draw = np.random.default_rng(seed)
    dtype = DTYPES[draw.integers(len(DTYPES))]
    number = 2 * int(draw.integers(1, 9)) - int(seed % 3 == 0)
    mixes = dtype != torch.uint8 and number % 2 == 0
    settings: Any = {
        "auto_augment": [None, "rand", "trivial", "timm"][draw.integers(4)],
        "three_augment": bool(draw.integers(2)),
        "color_jitter": (0.4, 0.4, 0.4, 0.1),
        "color_jitter_probability": 0.8,
        **dict.fromkeys(("grayscale", "blur", "solarize", "erasing"), 0.4),
        **({"mixup": 0.8, "cutmix": 1.0} if mixes else {}),
    }
    pipeline = ImagePipeline(size=SIZE, augment=Augmentations(**settings))
    memory_format = MEMORY_FORMATS[draw.integers(2)]
    stage = BatchStage(pipeline, dtype, CPU, num_classes=10, memory_format=memory_format)
    images, plan = batch_of(number), stage.plan(key_of(number))
    assert plan is not None
    monkeypatch.setattr(STAGE, "_JOB_VALUES", int(draw.integers(1, 8)) * images[0].numel())
    monkeypatch.setattr(STAGE, "_LEAST_VALUES", int(draw.integers(1, 4)) * images[0].numel())
    out = torch.full(images.shape, 77, dtype=torch.int64).to(dtype)
    jobs = stage.split(images, out, plan, workers=int(draw.integers(1, 5)))
    assert len(jobs) > 1 or number <= 8
    for number_of_job in draw.permutation(len(jobs)):
        jobs[number_of_job]()
    found, expected = stage.arrange(out), stage(images, plan=plan)
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()


@pytest.mark.parametrize("dtype", [torch.uint8, *FLOATS])
@pytest.mark.parametrize("name", ["call", "memory", "plan", "jobs", "patches", "target", "patched target"])
def test_no_images_give_no_images(name: str, dtype: torch.dtype) -> None:
    pipeline = RECIPES["odd"]
    images = torch.empty((0, *SIZE, 3), dtype=torch.uint8)
    if name in ("target", "patched target"):
        rules = TargetRules(
            channels=3,
            scale=1,
            interpolation="bilinear",
            fill=(0.0, 0.0, 0.0),
            mean=(1.0, 2.0, 3.0),
            std=(1.0, 2.0, 3.0),
        )
        stage: Any = TargetStage(rules, CPU, torch.channels_last)
        images = images if name == "target" else images.flatten(2)
        dtype = torch.float32
    elif name == "patches":
        stage, images = PatchStage(pipeline, dtype, CPU), images.flatten(2)
    else:
        drawn = Augmentations(auto_augment="rand", blur=1.0, erasing=1.0) if name in ("plan", "jobs") else None
        stage = BatchStage(replace(pipeline, augment=drawn or Augmentations()), dtype, CPU)
    wanted = (0, *SIZE[:1], SIZE[1] * 3) if images.dim() == 3 else (0, 3, *SIZE)
    plan = stage.plan(key_of(0)) if name in ("plan", "jobs") else None
    out = torch.empty(images.shape, dtype=dtype)
    if name == "jobs":
        for job in stage.split(images, out, plan, workers=4):
            job()
        found = stage.arrange(out)
    elif name == "plan":
        found = stage(images, plan=plan)
    else:
        found = stage(images, out) if name == "memory" else stage(images)
    assert (found.shape, found.dtype) == (wanted, dtype)


def deep_batch() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(0, 65536, (4, *SIZE, 3), np.uint16))


@pytest.mark.parametrize("device", [CPU, pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)])
@pytest.mark.parametrize("channels", [3, 1])
def test_levels_of_16_bits_are_normalised_or_passed_on(channels: int, device: torch.device) -> None:
    pipeline = replace(GREY, depth=16) if channels == 1 else ImagePipeline(size=SIZE, depth=16)
    images = deep_batch()[..., :channels].contiguous()
    raw = BatchStage(pipeline, torch.uint16, device)(images.to(device)).cpu()
    assert np.array_equal(raw.numpy(), images.permute(0, 3, 1, 2).numpy())
    mean, std = (torch.tensor(each, dtype=torch.float64).view(-1, 1, 1) for each in (pipeline.mean, pipeline.std))
    expected = (images.permute(0, 3, 1, 2).to(torch.float64) / 65535 - mean) / std
    found = BatchStage(pipeline, torch.float32, device)(images.to(device)).cpu()
    assert (found.to(torch.float64) - expected).abs().max() < 2e-6


def test_16_bits_are_erased_and_mixed() -> None:
    pipeline = ImagePipeline(size=SIZE, depth=16, augment=Augmentations(erasing=1.0))
    images, stage = deep_batch(), BatchStage(pipeline, torch.uint16, CPU)
    plan = stage.plan(key_of(4))
    assert plan is not None
    found = stage(images, plan=plan).permute(0, 2, 3, 1).numpy()
    expected = images.numpy().copy()
    for row, (left, top, right, bottom) in enumerate(plan.erased.tolist()):
        expected[row, top:bottom, left:right] = np.rint(np.float32(pipeline.mean) * np.float32(65535))
    assert np.array_equal(found, expected)
    assert np.array_equal(images.numpy(), deep_batch().numpy())  # left alone
    mixing = replace(pipeline, augment=Augmentations(mixup=0.4))
    stage = BatchStage(mixing, torch.float32, CPU, num_classes=4)
    plan = stage.plan(key_of(4))
    assert plan is not None
    expected = BatchStage(replace(pipeline, augment=Augmentations()), torch.float32, CPU)(images).permute(0, 2, 3, 1)
    expected = expected.clone()
    assert plan.mixing is not None
    mix(expected, plan.mixing)
    assert torch.equal(stage(images, plan=plan), expected.permute(0, 3, 1, 2))


@pytest.mark.parametrize(("depth", "dtype"), [(8, torch.uint16), (16, torch.uint8)])
def test_levels_of_another_depth_are_rejected(depth: Literal[8, 16], dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=f"dtype must be one of .*depth={depth}"):
        BatchStage(ImagePipeline(size=SIZE, depth=depth), dtype, CPU)
