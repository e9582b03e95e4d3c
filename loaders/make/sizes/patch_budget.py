"""PatchBudget asks for batches of patches: images in their own aspect, cut to sequences of a few lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.loaders.order.epoch_steps import Rounds
from penstock.pipelines.messages.checked import checked_int, checked_number, set_checked, shown

_MAX_PATCH, _MAX_LENGTH, _MAX_LENGTHS = 256, 1 << 16, 64


@dataclass(frozen=True, kw_only=True)
class PatchBudget:
    """Ask for images that keep their aspect and are cut into patches, as timm's NaFlex models take them.

    Every batch has one of `sequence_lengths`. An image is scaled as far as its patches fit that length; the rest of its
    row is padding, which patch_valid marks. The lengths come equally often, in an order that is drawn; one that is
    named twice comes twice as often. Raises ValueError for what cannot work.

    Attributes:
        size: side of a patch, in pixels.
        sequence_lengths: the most patches per image, one number or several.
        tokens: patches per batch on each rank, with padding: a batch of length L holds tokens // L images. By default
            batch_size images of the longest sequence.
        max_ratio: the most by which an image is enlarged, such as 1 for never; None for no limit.
    """

    size: int = 16
    sequence_lengths: int | Sequence[int] = (128, 256, 576)
    tokens: int | None = None
    max_ratio: float | None = None

    def __post_init__(self) -> None:
        lengths: object = self.sequence_lengths
        lengths = tuple(lengths) if isinstance(lengths, (tuple, list)) else (lengths,)
        if not 1 <= len(lengths) <= _MAX_LENGTHS:
            raise ValueError(f"sequence_lengths must be 1 to {_MAX_LENGTHS} numbers, got {shown(lengths)}")
        lengths = tuple(checked_int("sequence_lengths", length, 1, _MAX_LENGTH) for length in lengths)
        set_checked(self, size=checked_int("size", self.size, 1, _MAX_PATCH), sequence_lengths=lengths)
        if self.tokens is not None:
            set_checked(self, tokens=checked_int("tokens", self.tokens))
            if self.tokens < max(lengths):
                raise ValueError(
                    f"tokens must hold an image of the longest sequence, {max(lengths)}, got {self.tokens}"
                )
        if self.max_ratio is not None:
            set_checked(self, max_ratio=float(checked_number("max_ratio", self.max_ratio, above=0)))

    def rounds(self, batch_size: int, *, shuffled: bool) -> Rounds:
        """Return the lengths and sizes of batches; `batch_size` counts if `tokens` is None."""
        assert isinstance(self.sequence_lengths, tuple)
        tokens = batch_size * max(self.sequence_lengths) if self.tokens is None else self.tokens
        return Rounds(
            patch=self.size,
            lengths=self.sequence_lengths,
            batch_sizes=tuple(tokens // length for length in self.sequence_lengths),
            max_ratio=self.max_ratio,
            shuffled=shuffled,
        )
