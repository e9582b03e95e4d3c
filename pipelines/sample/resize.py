"""Antialiased resize and mirror, straight into a batch slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from penstock.pipelines.image_types import Pixels

Resize = Callable[[Pixels, torch.Tensor], None]


def _aten_out() -> Any | None:
    """torch's own kernel with an `out=` argument; None where this build of torch lacks the private name."""
    return getattr(getattr(torch.ops.aten, "_upsample_bilinear2d_aa", None), "out", None)


_ATEN_OUT = _aten_out()


def as_nchw(pixels: Pixels) -> torch.Tensor:
    """Pixels [height, width, 3] as a dense channels_last tensor [1, 3, height, width], sharing memory if contiguous."""
    dense = np.ascontiguousarray(pixels) if pixels.flags.writeable else pixels.copy()  # torch warns of read-only memory
    return torch.from_numpy(dense).permute(2, 0, 1).unsqueeze(0)


def resize_torch_portable(pixels: Pixels, slot: torch.Tensor) -> None:
    """As resize_torch, by torch's public interface: one allocation and one copy more."""
    slot.copy_(
        functional.interpolate(
            as_nchw(pixels), size=tuple(slot.shape[-2:]), mode="bilinear", antialias=True, align_corners=False
        )
    )


def resize_torch_into(pixels: Pixels, slot: torch.Tensor) -> None:
    """As resize_torch, by the kernel that functional.interpolate dispatches to, writing into `slot` itself."""
    assert _ATEN_OUT is not None
    _ATEN_OUT(as_nchw(pixels), list(slot.shape[-2:]), False, None, None, out=slot)


def resize_torch(pixels: Pixels, slot: torch.Tensor) -> None:
    """Antialiased bilinear resize of uint8 [h, w, 3] into `slot`, uint8 [1, 3, height, width], channels_last."""
    (resize_torch_into if _ATEN_OUT is not None else resize_torch_portable)(pixels, slot)


def resize_pillow(pixels: Pixels, slot: torch.Tensor) -> None:
    """The same resize by Pillow, or by Pillow-SIMD where that is installed."""
    from PIL import Image

    height, width = slot.shape[-2:]
    image = Image.fromarray(np.ascontiguousarray(pixels))
    resized = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    slot.permute(0, 2, 3, 1)[0].numpy()[...] = resized


RESIZERS: dict[str, Resize] = {"torch": resize_torch, "pillow": resize_pillow}


def write_sample(pixels: Pixels, slot: torch.Tensor, flip: bool, resize: Resize) -> None:
    """Resize `pixels` into `slot` (see resize_torch) and mirror it left-right if `flip`; equal sizes are copied."""
    if pixels.shape[:2] == tuple(slot.shape[-2:]):
        slot.copy_(as_nchw(pixels))
    else:
        resize(pixels, slot)
    if flip:
        slot.copy_(
            torch.flip(slot, (3,))
        )  # torch.flip has a vectorised path for channels_last; numpy takes ten times as long
