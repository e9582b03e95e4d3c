"""The batch stage in a few Triton kernels: one upload, at most two launches per round, and one final launch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from penstock.pipelines.batch.color import hsv_tables, hue_shifts
from penstock.pipelines.batch.erase_and_mix import compute_given_shares
from penstock.pipelines.batch.lookup_tables import make_posterize_masks, make_stretch_factors
from penstock.pipelines.batch.upload_parameters import to_device
from penstock.pipelines.plan.augmentations import AugmentPlan, Floats, Op
from penstock.pipelines.plan.moves import fixed_steps, inverse_matrices

DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
_TABULATED = (Op.CONTRAST, Op.AUTO_CONTRAST, Op.EQUALIZE)
ROUND_WORDS, END_WORDS = 8, 12  # parameters of an image, for a round and for the end
OPS = tuple(op for op in Op if op <= Op.GRAYSCALE)  # the operations that the kernels support
_BLENDS = (Op.BRIGHTNESS, Op.COLOR, Op.CONTRAST, Op.SHARPNESS)
# Elements per step of a program, and its warps: pixels of a round, levels to count, values at the end. Each thread
# has few of them: nvdisasm counts 105, 64 and 78 registers on an H100, without spills.
BLOCKS = {"apply_round": (512, 4), "make_tables": (4096, 8), "finish": (1024, 4)}

Words = npt.NDArray[np.int32]


class FusedStage:
    """Augment, normalise, erase and mix uint8 batches on one device, bit-exact with the CPU path.

    Attributes:
        levels: result for each level of a channel, then for an erased pixel: [3, 257] of one of DTYPES.
    """

    def __init__(self, levels: torch.Tensor, device: torch.device) -> None:
        self.levels = levels.to(device)
        self._hues, self._saturations = hsv_tables(device)
        self._stretches = make_stretch_factors(device)
        self._no_boxes = torch.zeros(0, dtype=torch.int32, device=device)  # parameters of images without a box

    def normalise(self, images: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Map uint8 [n, height, width, 3] through `levels`, into new memory or `out`: one launch, no upload."""
        n = len(images)
        if len(self._no_boxes) < n * END_WORDS:
            self._no_boxes = torch.zeros(n * END_WORDS, dtype=torch.int32, device=images.device)
        return self._finish(images.contiguous(), self._no_boxes, out, mixed=False)

    def __call__(self, images: torch.Tensor, plan: AugmentPlan, out: torch.Tensor | None = None) -> torch.Tensor:
        """Apply the plan to uint8 [n, height, width, 3], into new memory or `out`; nothing is read back.

        Returns the images themselves for uint8 and an empty plan. Raises ValueError for the plan of another batch.
        """
        n, height, width, _ = images.shape
        if n != len(plan.erased):  # a kernel would read beyond its parameters
            raise ValueError(f"the plan must be for {n} images, got one for {len(plan.erased)}")
        of_rounds, of_end = pack_rounds(plan.ops.ravel(), plan.values.ravel(), (height, width)), pack_end(plan)
        words = to_device(np.concatenate((of_rounds, of_end), None), images.device)
        *records, end = torch.split(words, [n * ROUND_WORDS] * len(plan.ops) + [of_end.size])
        images = self._apply_rounds(images.contiguous(), plan.ops, records) if n else images
        if self.levels.dtype == torch.uint8 and not plan.erased.any():
            return images
        return self._finish(images, end, out, mixed=plan.mixing is not None)

    def _finish(
        self, images: torch.Tensor, end: torch.Tensor, out: torch.Tensor | None, *, mixed: bool
    ) -> torch.Tensor:
        n, height, width, _ = images.shape
        result = torch.empty(images.shape, dtype=self.levels.dtype, device=images.device) if out is None else out
        pixels = height * width
        launch("finish", (n, 3 * pixels), images, result, end, self.levels, pixels, width, MIXED=mixed)
        return result

    def _apply_rounds(
        self, images: torch.Tensor, ops: npt.NDArray[np.int8], records: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Apply one round after another, alternating between two buffers; `images` are not changed."""
        n, height, width, _ = images.shape
        memory = [torch.empty_like(images) for _ in records[:2]]
        tables = torch.empty((n, 3, 256), dtype=torch.uint8, device=images.device)
        for number, record in enumerate(records):
            if np.isin(ops[number], _TABULATED).any():
                launch("make_tables", (n, 3), images, record, self._stretches, tables, height * width)
            result, hsv = memory[number % 2], (self._hues, self._saturations)
            launch("apply_round", (n, height * width), images, result, record, tables, *hsv, height, width)
            images = result
        return images


def launch(name: str, work: tuple[int, int], *arguments: torch.Tensor | int, **constants: bool) -> None:
    """Queue a kernel of fused_kernels.py on the stream of its images' device; work: (images, values of each)."""
    from penstock.pipelines.batch import fused_kernels

    block, warps = BLOCKS[name]
    programs = work[0] * (work[1] if name == "make_tables" else -(-work[1] // block))
    if programs:
        with torch.cuda.device_of(arguments[0]):  # type: ignore[no-untyped-call]
            kernel = getattr(fused_kernels, name)
            kernel[(programs,)](*arguments, **constants, BLOCK=block, num_warps=warps, enable_fp_fusion=False)


def pack_rounds(ops: npt.NDArray[np.int8], values: Floats, size: tuple[int, int]) -> Words:
    """Return each image's operation of a round and its parameters (at most six), int32 [n, ROUND_WORDS]."""
    words = np.zeros((len(ops), ROUND_WORDS), np.int32)
    words[:, 0] = np.where(ops == Op.GRAYSCALE, Op.COLOR, ops)  # a blend with the grey image, by the factor 0
    moves, blends = ops <= Op.ROTATE, np.isin(ops, _BLENDS)  # identity counts as a move
    words[moves, 1:7] = fixed_steps(inverse_matrices(ops[moves], values[moves], size)).T
    words[blends, 1] = values[blends].astype(np.float32).view(np.int32)
    for op, parameters in ((Op.POSTERIZE, make_posterize_masks), (Op.SOLARIZE, np.ceil), (Op.HUE, hue_shifts)):
        words[ops == op, 1] = parameters(values[ops == op])
    return words


def pack_end(plan: AugmentPlan) -> Words:
    """Return each image's parameters after the rounds, int32 [n, END_WORDS]: erased box, exchanged box, given share.

    A box is left, top, right, bottom; the share is a float32.
    """
    words = np.zeros((len(plan.erased), END_WORDS), np.int32)
    words[:, :4] = plan.erased
    if plan.mixing is not None:
        words[:, 4:8] = np.repeat(plan.mixing.boxes, 2, 0)
        words[:, 8] = np.repeat(compute_given_shares(plan.mixing), 2).view(np.int32)
    return words
