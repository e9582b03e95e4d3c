"""Decides whether to use the fused kernels on a device: they must compile there and equal the CPU path."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
import torch

from penstock.pipelines.batch.augment import augment
from penstock.pipelines.batch.erase_and_mix import erase, mix
from penstock.pipelines.batch.fused import DTYPES, OPS, FusedStage
from penstock.pipelines.errors import one_line
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.plan.augmentations import AugmentPlan, Floats, Mixing, Op

SWITCH = "PENSTOCK_TRITON"  # 0 switches the kernels off
_SIZE = (71, 90)  # several programs per image, and two blocks of a histogram; a multiple of neither
_IMAGES = 2 * len(OPS)  # each operation twice per round
_FACTORS = (0.3, 1.7)  # for blends
_VALUES = {Op.POSTERIZE: (2.0, 4.0), Op.SOLARIZE: (77.5, 255.0), Op.HUE: (-0.31, 0.1), Op.ROTATE: (-20.0, 110.0)}
_VALUES |= dict.fromkeys((Op.SHEAR_X, Op.SHEAR_Y), (-0.2, 0.3))
_VALUES |= dict.fromkeys((Op.TRANSLATE_X, Op.TRANSLATE_Y), (-5.0, 9.0))
_MAX_CHARACTERS = 200  # shown of a compiler's message


def choose_fused_stage(levels: torch.Tensor, device: torch.device, *, augments: bool = True) -> FusedStage | None:
    """Return the fused kernels for results `levels` (see FusedStage) on `device`, or None if they cannot be used.

    Returns None without CUDA or Triton, or if they are switched off. Warns and returns None if they do not compile or
    give wrong results, which is checked once per process, device and dtype. augments: False checks only the normalising
    kernel, which takes less time.
    """
    if device.type != "cuda" or levels.dtype not in DTYPES or is_switched_off() or find_spec("triton") is None:
        return None
    if why := _find_fault(device, levels.dtype, augments):
        problem = f"the fused kernels of the batch stage are not used on {device} ({why})"
        instead = "torch's kernels are slower, with the same pixels; penstock doctor reports what is missing"
        warn_user(f"{problem}: {instead}, {SWITCH}=0 skips the check", RuntimeWarning)
        return None
    return FusedStage(levels, device)


def is_switched_off() -> bool:
    """Return whether the environment switches the kernels off."""
    return os.environ.get(SWITCH) == "0"


@cache
def _find_fault(device: torch.device, dtype: torch.dtype, augments: bool = True) -> str:
    """Try every operation on a test batch, or only normalising, and return a description of the fault; "" for none."""
    images, plan = make_test_batch()
    plans = (plan._replace(mixing=None), plan)[: 1 + (dtype != torch.uint8)] if augments else (None,)
    first = torch.tensor([[0], [85], [170]], dtype=torch.int64, device="cpu")
    levels = torch.arange(257, dtype=torch.int64, device="cpu") + first
    levels = levels.remainder(256).to(dtype) if dtype == torch.uint8 else levels.sub(200).div(77).to(dtype)
    try:
        for each in plans:
            stage, given = FusedStage(levels, device), images.to(device)
            found = (stage.normalise(given) if each is None else stage(given, each)).cpu()
            wrong = (found != compute_expected(images, each, levels)).to(torch.float32).mean().item()
            if wrong:
                return f"{100 * wrong:.2g} % of the values of a test batch are wrong"
    except Exception as error:  # a compiler, a driver or another version of Triton may raise anything
        return one_line(f"{type(error).__name__}: {error}")[:_MAX_CHARACTERS]
    return ""


def compute_expected(images: torch.Tensor, plan: AugmentPlan | None, levels: torch.Tensor) -> torch.Tensor:
    """Compute on the CPU path the result that FusedStage must return: [n, height, width, 3]."""
    places = (images if plan is None else augment(images, plan)).to(torch.int64)
    result = torch.stack([levels[c][places[..., c]] for c in range(3)], -1)
    if plan is None:
        return result
    erase(result, plan.erased, levels[:, 256])
    if plan.mixing is not None:
        mix(result, plan.mixing)
    return result


def make_test_batch() -> tuple[torch.Tensor, AugmentPlan]:
    """Return uint8 images [n, height, width, 3], and a plan with every operation, erased boxes and mixed pairs."""
    draw, (height, width) = np.random.default_rng(0), _SIZE
    n = _IMAGES
    ops = np.arange(n, dtype=np.int8) % len(OPS)
    pixels = draw.integers(0, 256, (n, height, width, 3)) // (1 + np.arange(n) % 3)[:, None, None, None]
    pixels[1::2] = np.sort(pixels[1::2] + 60, 2)[:, ::-1] % 251  # smoother, without the lowest levels
    rounds = np.stack((ops, draw.permutation(ops)))
    values = np.stack([_choose_values(each) for each in rounds])
    x, y = np.sort(draw.integers(0, width + 1, (n, 2))), np.sort(draw.integers(0, height + 1, (n, 2)))
    boxes = np.stack((x[:, 0], y[:, 0], x[:, 1], y[:, 1]), 1).astype(np.int32)
    cut = np.arange(n // 2) % 3 == 0
    share = np.where(np.arange(n // 2) % 3 == 2, 1.0, draw.random(n // 2))
    mixing = Mixing(share, cut, np.where(cut[:, None], boxes[::2], 0).astype(np.int32))
    erased = np.where(np.arange(n)[:, None] % 4 == 0, boxes[::-1], 0).astype(np.int32)
    return torch.from_numpy(pixels.astype(np.uint8)), AugmentPlan(rounds, values, erased, mixing)


def _choose_values(ops: npt.NDArray[np.int8]) -> Floats:
    """Return a parameter for each operation: one of two, and the other one when the operation occurs again."""
    turns = [(n + n // len(OPS)) % 2 for n in range(len(ops))]
    return np.array([_VALUES.get(Op(op), _FACTORS)[turn] for op, turn in zip(ops.tolist(), turns, strict=True)])
