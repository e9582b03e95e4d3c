"""Settings of the augmentations that the batch stage applies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

RAND_BINS = 31  # magnitudes of torchvision's RandAugment and TrivialAugmentWide
_MAX_RAND_OPS = 16


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, kw_only=True)
class Augmentations:
    """What is drawn for each sample beyond crop and flip; the defaults do nothing. Applied in this order.

    auto_augment: "rand" is torchvision's RandAugment with `rand_ops` operations of magnitude `rand_magnitude` (0 to
    30), "trivial" its TrivialAugmentWide. color_jitter: (brightness, contrast, saturation, hue) as torchvision's
    ColorJitter takes them, hue at most 0.5. erasing: probability of torchvision's RandomErasing, which sets a box to 0
    after normalising (with dtype uint8: to the mean colour). mixup, cutmix: alpha of the Beta distribution by which
    pairs of samples are mixed; with both, each pair takes one of them by a coin flip. Raises ValueError for settings
    that cannot work.
    """

    auto_augment: Literal["rand", "trivial"] | None = None
    rand_ops: int = 2
    rand_magnitude: int = 9
    color_jitter: tuple[float, float, float, float] | None = None
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        if self.auto_augment not in (None, "rand", "trivial"):
            raise ValueError(f"auto_augment is None, 'rand' or 'trivial', not {self.auto_augment!r}")
        for name, low, high in (("rand_ops", 1, _MAX_RAND_OPS), ("rand_magnitude", 0, RAND_BINS - 1)):
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise ValueError(f"{name} is an integer from {low} to {high}, not {value!r}")
        jitter = self.color_jitter
        if jitter is not None and not (
            isinstance(jitter, tuple)
            and len(jitter) == 4
            and all(_is_number(part) and part >= 0 for part in jitter)
            and jitter[3] <= 0.5
        ):
            wanted = "(brightness, contrast, saturation, hue), a tuple of numbers from 0, hue at most 0.5"
            raise ValueError(f"color_jitter is None or {wanted}, not {jitter!r}")
        if not _is_number(self.erasing) or not 0 <= self.erasing <= 1:
            raise ValueError(f"erasing is a probability, not {self.erasing!r}")
        for name in ("mixup", "cutmix"):
            value = getattr(self, name)
            if not _is_number(value) or value < 0:
                raise ValueError(f"{name} is an alpha above 0, or 0 for none, not {value!r}")

    @property
    def changes_pixels(self) -> bool:
        """Whether any operation on uint8 pixels is asked for."""
        return self.auto_augment is not None or self.jitters

    @property
    def jitters(self) -> bool:
        """Whether color_jitter asks for anything."""
        return self.color_jitter is not None and any(self.color_jitter)

    @property
    def mixes(self) -> bool:
        """Whether pairs of samples are mixed, and labels become soft targets."""
        return self.mixup > 0 or self.cutmix > 0

    @property
    def active(self) -> bool:
        """Whether anything is asked for at all."""
        return self.changes_pixels or self.erasing > 0 or self.mixes
