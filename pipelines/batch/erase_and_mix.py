"""Random erasing, mixup and cutmix of a batch, and the soft targets of mixed labels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from penstock.pipelines.batch.upload_parameters import to_device
from penstock.pipelines.plan.augmentations import Mixing

_CPU_VALUES = 1 << 18  # values of a piece of the batch, so that intermediate results stay in the processor's cache


def _find_rows(
    boxes: npt.NDArray[np.int32], shape: tuple[int, int, int], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the pixel rows covered by one box per image, and the part of these rows that lies in the box.

    boxes: left, top, right, bottom in pixels, int32 [n, 4]; an empty box for none; shape: height, width and channels.
    Returns row numbers, int64 [m], in the vertical stack of all images, and a mask of the values in the box, bool
    [m, width * channels].
    """
    height, width, channels = shape
    left, top, right, bottom = boxes.astype(np.int64).T
    counts = np.where(right > left, np.maximum(bottom - top, 0), 0)
    of_box = np.repeat(np.arange(len(boxes)), counts)
    within = np.arange(len(of_box)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = to_device(of_box * height + top[of_box] + within, device)
    edges = to_device(channels * np.stack((left[of_box], right[of_box])), device)[:, :, None]
    column = torch.arange(channels * width, dtype=torch.int64, device=device)
    return rows, (column >= edges[0]) & (column < edges[1])


def erase(images: torch.Tensor, boxes: npt.NDArray[np.int32], colour: torch.Tensor) -> None:
    """Fill one box in each image with a colour, in place.

    images: [n, height, width, channels]; boxes: left, top, right, bottom in pixels, int32 [n, 4], an empty box for
    none; colour: [channels] of the images' dtype.
    """
    if not boxes.any():
        return
    n, height, width, channels = images.shape
    rows, inside = _find_rows(boxes, (height, width, channels), images.device)
    flat = images.view(n * height, width * channels)
    flat.index_copy_(0, rows, torch.where(inside, colour.repeat(width), flat.index_select(0, rows)))


def mix(images: torch.Tensor, mixing: Mixing) -> None:
    """Mix images 2k and 2k + 1 of a batch, in place; images: floats [batch, height, width, channels].

    Half-precision images are mixed in float32.
    """
    _blend(images, compute_given_shares(mixing))
    if (mixing.boxes[:, 2:] > mixing.boxes[:, :2]).all(1).any():
        _exchange(images, mixing.boxes)


def compute_given_shares(mixing: Mixing) -> npt.NDArray[np.float32]:
    """Return the share that each image of a pair contributes to the other in blending, float32 [n / 2]."""
    return (1.0 - np.where(mixing.cut, 1.0, mixing.share)).astype(np.float32)


def _blend(images: torch.Tensor, shares: npt.NDArray[np.float32]) -> None:
    if not shares.any():
        return
    pairs = images.view(len(shares), 2, -1)
    wide = torch.promote_types(images.dtype, torch.float32)
    given = to_device(shares[:, None], images.device).to(wide)
    step = len(shares) if images.device.type != "cpu" else max(1, _CPU_VALUES // pairs.shape[2])
    for first in range(0, len(shares), step):
        pair = pairs[first : first + step]  # not torch.split: autograd forbids changing its parts in place
        even, odd = pair[:, 0], pair[:, 1]
        moved = (even - odd.to(wide)).mul_(given[first : first + step])
        even.sub_(moved)  # half-precision images: in float32, rounded once
        odd.add_(moved)


def _exchange(images: torch.Tensor, boxes: npt.NDArray[np.int32]) -> None:
    n, height, width, channels = images.shape
    # A pair is treated as one image of twice the height, with the boxes in its upper half.
    upper, inside = _find_rows(boxes, (2 * height, width, channels), images.device)
    rows = torch.stack((upper, upper + height))
    flat = images.view(n * height, width * channels)
    own, other = (flat.index_select(0, each.view(-1)) for each in (rows, rows.flip(0)))
    mixed = torch.where(inside, other.view(2, len(upper), -1), own.view(2, len(upper), -1))
    flat.index_copy_(0, rows.view(-1), mixed.view(own.shape))


def make_soft_targets(labels: torch.Tensor, mixing: Mixing, num_classes: int) -> torch.Tensor:
    """Turn labels, int64 [batch], into soft targets, float32 [batch, num_classes].

    A row sums to 1; a padding row (label -1) is all 0.
    """
    share = np.repeat(mixing.share, 2).astype(np.float32)
    own = to_device(share, labels.device) * (labels >= 0)
    # 0 in a pair with padding (the kept share is 1), so that a partner with label -1 contributes nothing
    other = to_device(1 - share, labels.device)
    targets = torch.zeros((len(labels), num_classes), dtype=torch.float32, device=labels.device)
    classes = torch.stack((labels, labels.view(-1, 2).flip(1).view(-1)), 1).clamp_(min=0)
    return targets.scatter_add_(1, classes, torch.stack((own, other), 1))


def mix_targets(targets: torch.Tensor, mixing: Mixing) -> torch.Tensor:
    """Mix targets, floats [batch] or [batch, k], by the shares of their images; NaN in a padding row stays there."""
    share = np.repeat(mixing.share, 2).astype(np.float32).reshape(-1, *[1] * (targets.dim() - 1))
    own = to_device(share, targets.device)
    partners = targets.view(-1, 2, *targets.shape[1:]).flip(1).view(targets.shape)
    return torch.where(own == 1, targets, own * targets + (1 - own) * partners).to(targets.dtype)
