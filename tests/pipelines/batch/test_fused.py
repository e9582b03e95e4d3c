"""The fused path of the batch stage: its cost on a device, and the fallback if its kernels cannot be used."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from kernel_count import KernelCount

from penstock.pipelines.augmentations import Augmentations
from penstock.pipelines.batch import fused, fused_check
from penstock.pipelines.batch import stage as batch_stage
from penstock.pipelines.batch.augment import augment
from penstock.pipelines.batch.stage import BatchStage
from penstock.pipelines.plan.augmentations import AugmentPlan, BatchKey, Op
from penstock.pipelines.spec import ImagePipeline

META, CPU, CUDA = torch.device("meta"), torch.device("cpu"), torch.device("cuda:0")
JITTER = (0.4, 0.4, 0.4, 0.1)
FULL = Augmentations(auto_augment="rand", color_jitter=JITTER, erasing=0.25, mixup=0.2, cutmix=1.0)
# The cost of a batch of 256 of 224 x 224 on a device, in launches (including the copy of parameters and soft targets)
# and in bytes.
BUDGETS = {
    "rand": (Augmentations(auto_augment="rand"), torch.bfloat16, 6, 0.29e9),
    "jitter": (Augmentations(color_jitter=JITTER), torch.bfloat16, 10, 0.47e9),
    "full, bfloat16": (FULL, torch.bfloat16, 24, 0.69e9),
    "full, float32": (FULL, torch.float32, 24, 0.76e9),
    "trivial, uint8": (Augmentations(auto_augment="trivial"), torch.uint8, 3, 0.09e9),
    "plain, bfloat16": (Augmentations(), torch.bfloat16, 1, 0.117e9),
}


def fused_anyway(levels: torch.Tensor, device: torch.device, *, augments: bool) -> fused.FusedStage:
    """Stands in for choose_fused_stage on a device where the kernels work."""
    return fused.FusedStage(levels, device)


class LaunchCount(KernelCount):
    """Also counts launches of fused kernels, with the bytes they read and write: tables once, pixels once per read."""

    def __init__(self, plan: AugmentPlan | None) -> None:
        super().__init__()
        self._rounds = iter(ops for ops in (plan.ops if plan else ()) if np.isin(ops, fused._TABULATED).any())

    def launch(self, name: str, work: tuple[int, int], *arguments: torch.Tensor | int, **constants: bool) -> None:
        parts = [part.numel() * part.element_size() for part in arguments if isinstance(part, torch.Tensor)]
        if name == "make_tables":  # only images that need one are read
            parts[0] = parts[0] * int(np.isin(next(self._rounds), fused._TABULATED).sum()) // work[0]
        self.kernels[name] += 1
        self.bytes[name] += sum(parts) + parts[0] * constants.get("MIXED", False)  # the partners' pixels


@pytest.mark.parametrize("name", BUDGETS)
def test_the_device_cost_of_a_batch_is_within_its_budget(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    augment, dtype, launches, num_bytes = BUDGETS[name]
    monkeypatch.setattr(batch_stage, "choose_fused_stage", fused_anyway)
    stage = BatchStage(ImagePipeline(augment=augment), dtype, META, num_classes=1000)
    images = torch.empty((256, 224, 224, 3), dtype=torch.uint8, device=META)
    labels = torch.zeros(256, dtype=torch.int64, device=META)
    plan = stage.plan(BatchKey(0, 0, np.arange(256)))
    monkeypatch.setattr(fused, "launch", lambda *_, **__: None)
    stage(images, plan=plan)  # the first batch of a size makes the parameters of images without a box
    with LaunchCount(plan) as count:
        monkeypatch.setattr(fused, "launch", count.launch)
        found = stage(images, plan=plan)
        stage.targets(labels, plan)
    assert (found.dtype, found.shape) == (dtype, (256, 3, 224, 224))
    assert count.kernels["apply_round"] == (0 if plan is None else len(plan.ops))
    assert count.kernels["finish"] == (dtype != torch.uint8)
    assert count.num_kernels <= launches, count.kernels
    assert count.num_bytes <= num_bytes, count.bytes


def test_images_are_unchanged_and_an_empty_plan_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []
    monkeypatch.setattr(fused, "launch", lambda name, work, images, *rest, **_: written.append((name, rest[0])))
    stage = fused.FusedStage(torch.zeros((3, 257), dtype=torch.uint8), META)
    images = torch.empty((4, 6, 7, 3), dtype=torch.uint8, device=META)
    plan = AugmentPlan(np.zeros((0, 4), np.int8), np.zeros((0, 4)), np.zeros((4, 4), np.int32), None)
    assert stage(images, plan) is images
    assert written == []
    erased = plan._replace(erased=np.ones((4, 4), np.int32))
    memory = torch.empty_like(images)
    assert stage(images, erased, memory) is memory
    assert [name for name, _ in written] == ["finish"]
    empty = plan._replace(erased=np.zeros((0, 4), np.int32))
    assert stage(images[:0], empty).shape == (0, 6, 7, 3)


# ---- kernels that cannot be used ----


class Right:
    """Stands in for kernels that are right."""

    calls = 0

    def __init__(self, levels: torch.Tensor, device: torch.device) -> None:
        self.levels = levels

    def __call__(self, images: torch.Tensor, plan: AugmentPlan | None) -> torch.Tensor:
        type(self).calls += 1
        return fused_check.compute_expected(images, plan, self.levels)

    def normalise(self, images: torch.Tensor) -> torch.Tensor:
        return self(images, None)


class Wrong(Right):
    """Stands in for kernels with one wrong value in the last image of a mixed batch, or of a plain one."""

    def __call__(self, images: torch.Tensor, plan: AugmentPlan | None) -> torch.Tensor:
        found = super().__call__(images, plan)
        found.view(-1)[-1] += plan is None or plan.mixing is not None
        return found


class Failing(Right):
    """Stands in for kernels that do not compile."""

    def __call__(self, images: torch.Tensor, plan: AugmentPlan | None) -> torch.Tensor:
        raise RuntimeError("Failed to find C compiler.\nPlease specify")


def test_the_test_batch_detects_each_missing_part() -> None:
    """A kernel that omits an operation, a box or a pair, or confuses two images, gives another result."""
    images, plan = fused_check.make_test_batch()
    levels = images.to(torch.float32)
    steps = levels.diff(dim=1).abs().mean((1, 2, 3))
    assert steps[1::2].median() < steps[::2].min() / 2  # every other image is smooth, except for a few edges
    assert len({(int(image.min()), int(image.max())) for image in images}) > 3
    seen: set[Op] = set()
    for ops, values in zip(plan.ops, plan.values, strict=True):
        changed = (augment(images, plan._replace(ops=ops[None], values=values[None])) != images).flatten(1).any(1)
        seen |= {Op(op) for op in ops[changed.numpy()]}
    assert seen == {*fused.OPS} - {Op.IDENTITY}
    assert all(len(set(plan.values[0][plan.ops[0] == op])) == 2 for op in (Op.ROTATE, Op.SOLARIZE, Op.COLOR))
    left, top, right, bottom = plan.erased.T
    assert 4 < np.count_nonzero((right > left) & (bottom > top)) < len(images) / 2
    assert plan.mixing is not None
    boxes, share = plan.mixing.boxes, plan.mixing.share
    exchanged = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    assert (exchanged == plan.mixing.cut).all()
    assert all(any(kind) for kind in (exchanged, ~exchanged & (share < 1), ~exchanged & (share == 1)))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton is installed, and the test batch runs on the CPU instead of the device."""
    real = fused_check._find_fault.__wrapped__
    monkeypatch.setattr(fused_check, "find_spec", lambda name: name)
    monkeypatch.setattr(fused_check, "_find_fault", lambda device, dtype, augments: real(CPU, dtype, augments))
    monkeypatch.delenv(fused_check.SWITCH, raising=False)


def levels_of(dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros((3, 257), dtype=dtype)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", fused.DTYPES, ids=str)
def test_right_kernels_are_used(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_check, "FusedStage", Right)
    states = (torch.get_rng_state(), np.random.get_state()[1].tolist())  # noqa: NPY002
    for augments in (True, False):
        assert isinstance(fused_check.choose_fused_stage(levels_of(dtype), CUDA, augments=augments), Right)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == np.random.get_state()[1].tolist()  # noqa: NPY002
    for refused, where in ((torch.float64, CUDA), (dtype, CPU), (dtype, META)):
        assert fused_check.choose_fused_stage(levels_of(refused), where) is None


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("kernels", "why"),
    [(Wrong, r"0\.\d+ % of the values"), (Failing, r"RuntimeError: Failed to find C compiler\. Please specify\)")],
)
@pytest.mark.parametrize("augments", [True, False])
def test_kernels_that_cannot_be_used_are_reported_in_one_line(
    kernels: type[Right], why: str, augments: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_check, "FusedStage", kernels)
    with pytest.warns(RuntimeWarning, match=why) as said:
        assert fused_check.choose_fused_stage(levels_of(torch.bfloat16), CUDA, augments=augments) is None
    assert "\n" not in str(said[0].message)
    assert str(said[0].message).endswith("penstock doctor reports what is missing, PENSTOCK_TRITON=0 skips the check")


@pytest.mark.usefixtures("device")
def test_missing_or_disabled_kernels_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_check, "FusedStage", Failing)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with monkeypatch.context() as patch:
            patch.setenv(fused_check.SWITCH, "0")
            assert fused_check.choose_fused_stage(levels_of(torch.float16), CUDA) is None
        monkeypatch.setattr(fused_check, "find_spec", lambda name: None)
        assert fused_check.choose_fused_stage(levels_of(torch.float16), CUDA) is None


def test_a_device_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_check, "FusedStage", Right)
    monkeypatch.setattr(Right, "calls", 0)
    fused_check._find_fault.cache_clear()
    try:
        for _ in range(3):
            assert fused_check._find_fault(CPU, torch.float16) == ""
    finally:
        fused_check._find_fault.cache_clear()
    assert Right.calls == 2  # a mixed batch and one that is not
    monkeypatch.setattr(Right, "calls", 0)
    fused_check._find_fault.__wrapped__(CPU, torch.float16, False)
    assert Right.calls == 1


def test_settings_without_a_fused_kernel_run_in_torch_and_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_stage, "choose_fused_stage", fused_anyway)

    def kernels_of(device: torch.device = META, **settings: Any) -> str:
        stage = BatchStage(ImagePipeline(augment=Augmentations(**settings)), torch.uint8, device)
        assert stage.fused == (stage.kernels == "fused kernels")
        return stage.kernels

    assert kernels_of(grayscale=0.2, solarize=0.1, color_jitter=JITTER, color_jitter_probability=0.8) == "fused kernels"
    assert kernels_of(blur=0.5, auto_augment="rand") == "torch (no fused kernel for blur)"
    unfused = {"auto_augment": "timm", "three_augment": True}
    assert kernels_of(**unfused) == "torch (no fused kernel for auto_augment, three_augment)"
    assert kernels_of(CPU, **unfused) == "torch"


def test_after_operations_of_torch_a_fused_kernel_normalises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then torch also erases and mixes, on values normalised in place."""
    launched: list[str] = []
    monkeypatch.setattr(batch_stage, "choose_fused_stage", fused_anyway)
    monkeypatch.setattr(fused, "launch", lambda name, *_, **__: launched.append(name))
    stage = BatchStage(ImagePipeline(augment=Augmentations(blur=0.5)), torch.bfloat16, META)
    assert (stage.fused, stage.kernels) == (False, "torch (no fused kernel for blur)")
    images = torch.empty((4, 224, 224, 3), dtype=torch.uint8, device=META)
    found = stage(images, plan=stage.plan(BatchKey(0, 0, np.arange(4))))
    assert (found.dtype, found.shape, launched) == (torch.bfloat16, (4, 3, 224, 224), ["finish"])


@pytest.mark.parametrize(
    "changed", [{"channels": 1, "mean": (0.5,), "std": (0.2,)}, {"depth": 16}], ids=["one channel", "16 bits"]
)
def test_input_that_the_kernel_does_not_support_is_normalised_by_torch(
    changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_stage, "choose_fused_stage", fused_anyway)
    assert not BatchStage(ImagePipeline(**changed), torch.float32, META).fused


def test_a_stage_on_the_cpu_does_not_use_fused_kernels() -> None:
    assert not BatchStage(ImagePipeline(augment=FULL), torch.float32, CPU, num_classes=3).fused


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", fused.DTYPES, ids=str)
def test_a_device_runs_the_kernels_and_equals_the_cpu(dtype: torch.dtype) -> None:
    augment = FULL if dtype != torch.uint8 else Augmentations(auto_augment="rand", color_jitter=JITTER, erasing=0.25)
    pipeline = ImagePipeline(size=(61, 70), augment=augment)
    images = torch.randint(256, (64, 61, 70, 3), dtype=torch.uint8)
    here, there = (BatchStage(pipeline, dtype, each, num_classes=9) for each in (CPU, torch.device("cuda")))
    plan = here.plan(BatchKey(3, 1, np.arange(64)))
    assert there.fused
    given = images.cuda()
    torch.cuda.set_sync_debug_mode("error")  # nothing waits for the device
    try:
        found = there(given, plan=plan)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found.cpu(), here(images, plan=plan))
