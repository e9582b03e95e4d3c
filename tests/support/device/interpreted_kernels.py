"""Compares the fused kernels in Triton's interpreter with the CPU path: `TRITON_INTERPRET=1 python FILE`.

Prints a JSON object with the error of each of CASES, "" if there is none. It is a separate process, because Triton
reads TRITON_INTERPRET when it is imported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "images"))
from augment_images import images_of, values_of

from penstock.pipelines.augmentations import Augmentations
from penstock.pipelines.batch import augment, fused, fused_check, fused_kernels, stage
from penstock.pipelines.plan.augmentations import AugmentPlan, BatchKey, Op
from penstock.pipelines.spec import ImagePipeline

CPU = torch.device("cpu")
CHECKED_SIZE = fused_check._SIZE
FULL = Augmentations(auto_augment="rand", color_jitter=(0.4, 0.4, 0.4, 0.1), erasing=0.5, mixup=0.4, cutmix=1.0)
RECIPES = {
    "full, float32": (FULL, torch.float32),
    "full, bfloat16": (FULL, torch.bfloat16),
    "trivial, erased, uint8": (Augmentations(auto_augment="trivial", erasing=0.7), torch.uint8),
    "jitter, float16": (Augmentations(color_jitter=(0.4, 0.4, 0.4, 0.1)), torch.float16),
    "rand, uint8": (Augmentations(auto_augment="rand", rand_ops=3), torch.uint8),
    "erased, float32": (Augmentations(erasing=1.0), torch.float32),
    "grey and solarized, uint8": (Augmentations(grayscale=0.5, solarize=0.5), torch.uint8),
    "mixup, bfloat16": (Augmentations(mixup=8.0), torch.bfloat16),
    "plain, bfloat16": (Augmentations(), torch.bfloat16),
    "plain, float32": (Augmentations(), torch.float32),
    "blurred, erased and mixed, float32": (Augmentations(blur=0.5, erasing=0.5, mixup=0.4), torch.float32),
    "erased and mixed, float16": (Augmentations(erasing=0.5, mixup=0.4, cutmix=1.0), torch.float16),
}


def difference(found: torch.Tensor, expected: torch.Tensor) -> str:
    if (found.dtype, found.shape, found.stride()) != (expected.dtype, expected.shape, expected.stride()):
        return (
            f"{found.dtype} {found.shape} {found.stride()}, not {expected.dtype} {expected.shape} {expected.stride()}"
        )
    wrong = int((found != expected).sum())
    return f"{wrong} of {found.numel()} values are wrong" if wrong else ""


def as_is() -> torch.Tensor:
    """Return the levels of a stage that changes none."""
    return torch.arange(257).clamp(max=255).to(torch.uint8).repeat(3, 1)


def rounds(size: tuple[int, int], ops: list[Op], *, images: int, seed: int = 0) -> str:
    """Compare one operation per image, in one round."""
    pixels = torch.from_numpy(images_of(images, size, seed))
    of_image = np.array([ops[n % len(ops)] for n in range(images)], np.int8)
    values = np.array([values_of(Op(op), 30)[n % 30] for n, op in enumerate(of_image)])
    plan = AugmentPlan(of_image[None], values[None], np.zeros((images, 4), np.int32), None)
    return difference(fused.FusedStage(as_is(), CPU)(pixels, plan), augment.augment(pixels, plan))


def recipe(name: str, size: tuple[int, int] = (13, 18), number: int = 6) -> str:
    """Compare a whole recipe with a drawn plan and one row of padding in the batch."""
    augmentations, dtype = RECIPES[name]
    pipeline = ImagePipeline(size=size, augment=augmentations)
    number -= not augmentations.mixes
    pixels = torch.from_numpy(images_of(2 * number, size))[::2]  # with gaps
    plain = stage.BatchStage(pipeline, dtype, CPU, num_classes=4)
    stage.choose_fused_stage = lambda levels, device, augments: fused.FusedStage(levels, device)  # type: ignore[attr-defined, assignment]
    try:
        ours = stage.BatchStage(pipeline, dtype, CPU, num_classes=4)
    finally:
        stage.choose_fused_stage = fused_check.choose_fused_stage  # type: ignore[attr-defined]
    plan = plain.plan(BatchKey(3, 1, np.append(np.arange(number - 1), -1)))
    assert ours.fused or augmentations.unfused
    assert not plain.fused
    before = pixels.contiguous()
    found = ours(pixels, plan=plan)
    return difference(found, plain(pixels, plan=plan)) or difference(pixels.contiguous(), before)


def check() -> str:
    """Run the checks of the first use of a device in a process."""
    return fused_check._find_fault(CPU, torch.bfloat16) or fused_check._find_fault(CPU, torch.bfloat16, False)


def wrong_level() -> str:
    """Test that the check of normalising notices a wrong kernel, which skips the last image."""
    launch = fused.launch
    fused.launch = lambda name, work, *rest, **constants: launch(name, (work[0] - 1, work[1]), *rest, **constants)
    try:
        said = fused_check._find_fault.__wrapped__(CPU, torch.float32, False)
    finally:
        fused.launch = launch
    return "" if "values of a test batch are wrong" in said else f"not noticed: {said}"


def patches() -> str:
    """Compare levels of patches, normalised like those of an image."""
    levels = torch.from_numpy(images_of(12, (7, 5))).view(3, 4, -1)
    stage.choose_fused_stage = lambda levels, device, augments: fused.FusedStage(levels, device)  # type: ignore[attr-defined, assignment]
    try:
        ours = stage.PatchStage(ImagePipeline(), torch.bfloat16, CPU)
    finally:
        stage.choose_fused_stage = fused_check.choose_fused_stage  # type: ignore[attr-defined]
    assert ours.fused
    return difference(ours(levels), stage.PatchStage(ImagePipeline(), torch.bfloat16, CPU)(levels))


def wrong_operation() -> str:
    """Test that the check notices a wrong kernel, which swaps two operations."""
    words = fused.pack_rounds
    fused.pack_rounds = lambda ops, *rest: words(np.where(ops == Op.HUE, np.int8(Op.IDENTITY), ops), *rest)
    try:
        said = fused_check._find_fault.__wrapped__(CPU, torch.uint8)
    finally:
        fused.pack_rounds = words
    return "" if "values of a test batch are wrong" in said else f"not noticed: {said}"


def lost_block() -> str:
    """Test that the check notices a fault behind the first block of a histogram, where pixels are not counted."""
    launch, blocks = fused.launch, fused.BLOCKS
    pixels, counted = CHECKED_SIZE[0] * CHECKED_SIZE[1], blocks["make_tables"][0]

    def losing(name: str, work: tuple[int, int], images: torch.Tensor, *rest: Any, **constants: bool) -> None:
        if name == "make_tables":
            images = images.clone()
            images.view(len(images), -1, 3)[:, fused.BLOCKS[name][0] :] = 0
        launch(name, work, images, *rest, **constants)

    fused.launch, fused.BLOCKS = losing, blocks | {"make_tables": (16, 8)}  # small, like the images here
    try:
        said = fused_check._find_fault.__wrapped__(CPU, torch.uint8)
    finally:
        fused.launch, fused.BLOCKS = launch, blocks
    if pixels <= counted or pixels % counted == 0:
        return "the images of the check have one block, or no partial one"
    return "" if "values of a test batch are wrong" in said else f"not noticed: {said}"


@triton.jit
def _distance(memory, found, image, pixels):  # type: ignore[no-untyped-def]
    start = fused_kernels.image_start(memory, image, pixels)
    tl.store(found, start.to(tl.int64) - memory.to(tl.int64))


def far_images() -> str:
    """Compare images that begin behind 2**31 values."""
    found = torch.zeros(1, dtype=torch.int64)
    _distance[(1,)](torch.zeros(1, dtype=torch.uint8), found, 70_000, 512 * 512)
    expected = 70_000 * 512 * 512 * 3
    return "" if found.item() == expected else f"{found.item()}, not {expected}"


def refused() -> str:
    """Test that the plan of another batch is refused."""
    plan = AugmentPlan(np.zeros((1, 3), np.int8), np.zeros((1, 3)), np.zeros((3, 4), np.int32), None)
    try:
        fused.FusedStage(as_is(), CPU)(torch.zeros((4, 2, 2, 3), dtype=torch.uint8), plan)
    except ValueError as error:
        return "" if str(error) == "the plan must be for 4 images, got one for 3" else str(error)
    return "accepted"


CASES: dict[str, Callable[[], str]] = {op.name: partial(rounds, (23, 31), [op], images=4) for op in fused.OPS}
CASES |= {str(size): partial(rounds, size, list(fused.OPS), images=16, seed=1) for size in ((1, 1), (2, 5), (3, 3))}
CASES |= {name: partial(recipe, name) for name in RECIPES}
CASES["more than 256 images"] = partial(rounds, (1, 2), [Op.SOLARIZE, Op.POSTERIZE], images=258)
CASES |= {"check": check, "wrong operation": wrong_operation, "lost block": lost_block}
CASES |= {"far images": far_images, "refused": refused, "wrong level": wrong_level, "patches": patches}


def mend_interpreter() -> None:
    """Make it round float32 to bfloat16 as devices do (it truncates), and skip its check for overflows."""
    interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)

    cast = interpreter.InterpreterBuilder.cast_impl

    def cast_impl(self, source, target):  # type: ignore[no-untyped-def]
        kinds = (str(source.dtype.scalar), str(target.scalar))
        if kinds != ("fp32", "bf16"):
            return cast(self, source, target)
        rounded = torch.from_numpy(np.ascontiguousarray(source.data)).to(torch.bfloat16)
        return interpreter.TensorHandle(rounded.view(torch.uint16).numpy(), target.scalar)

    for name in ("cast_impl", "create_fp_trunc"):
        setattr(interpreter.InterpreterBuilder, name, cast_impl)


def main() -> None:
    torch.set_num_threads(1)
    mend_interpreter()
    fused_check._SIZE, fused_check._IMAGES = (5, 7), 16
    print(json.dumps({name: case() for name, case in CASES.items()}))


if __name__ == "__main__":
    main()
