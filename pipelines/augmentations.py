"""Settings of the batch stage beyond normalisation: `Augmentations`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from penstock.pipelines.messages.checked import (
    checked_bool,
    checked_choice,
    checked_int,
    checked_interval,
    checked_number,
    checked_tuple,
    set_checked,
    shown,
)

RAND_BINS = 31  # number of magnitudes of torchvision's RandAugment and TrivialAugmentWide
MAX_RAND_OPS = 16
TIMM_MAGNITUDE = 10  # the highest magnitude of timm's RandAugment
_MAX_BLUR_SIGMA = 10.0


@dataclass(frozen=True, kw_only=True)
class Augmentations:
    """The augmentations of the batch stage, in the order of application; the defaults do nothing.

    Raises ValueError for settings that cannot work.

    Attributes:
        auto_augment: "rand" for torchvision's RandAugment, "trivial" for its TrivialAugmentWide, "timm" for timm's
            RandAugment with increasing severities: "rand-m9-mstd0.5-inc1" is "timm" with rand_magnitude_std=0.5.
        rand_ops: number of operations that RandAugment draws for each image, 1 to 16; timm's skips each with
            probability 1/2.
        rand_magnitude: magnitude of RandAugment's operations, 0 to 30; for "timm", 0 to 10.
        rand_magnitude_std: standard deviation of each operation's magnitude, for "timm"; magnitudes stay in 0 to 10.
        three_augment: whether each image is made grey, solarized at level 128 or blurred (one of them), as in DeiT III.
        color_jitter: (brightness, contrast, saturation, hue) as for torchvision's ColorJitter, hue at most 0.5.
        color_jitter_probability: probability that an image is jittered at all.
        grayscale: probability that an image is made grey, in three equal channels.
        blur: probability of a Gaussian blur, Pillow's ImageFilter.GaussianBlur.
        blur_sigma: lowest and highest standard deviation of a blur, in pixels, at most 10; also for three_augment.
        solarize: probability that levels from `solarize_threshold` on are inverted.
        solarize_threshold: lowest level that solarize inverts, 0 to 256.
        erasing: probability of torchvision's RandomErasing, which sets a box to 0 after normalising (with dtype uint8:
            to the mean colour).
        mixup: alpha of the Beta distribution of the shares by which pairs of images are blended; 0 for no mixup.
        cutmix: the same for pairs that exchange a box; with both, each pair uses either with probability 1/2.
    """

    auto_augment: Literal["rand", "trivial", "timm"] | None = None
    rand_ops: int = 2
    rand_magnitude: int = 9
    rand_magnitude_std: float = 0.0
    three_augment: bool = False
    color_jitter: tuple[float, float, float, float] | None = None
    color_jitter_probability: float = 1.0
    grayscale: float = 0.0
    blur: float = 0.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    solarize: float = 0.0
    solarize_threshold: int = 128
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.auto_augment, str) and self.auto_augment.startswith("rand-"):
            fix = "pass auto_augment='timm' with rand_magnitude=9 (m9) and rand_magnitude_std=0.5 (mstd0.5)"
            raise ValueError(f"auto_augment must be one name, got timm's {shown(self.auto_augment)}: {fix}")
        if self.auto_augment is not None:
            checked_choice("auto_augment", self.auto_augment, ("rand", "trivial", "timm"))
        jitter: Any = self.color_jitter
        if jitter is not None:
            check = partial(checked_number, low=0)
            jitter = checked_tuple("color_jitter", jitter, ("brightness", "contrast", "saturation", "hue"), check)
            checked_number("color_jitter (hue)", jitter[3], 0, 0.5)
        most = TIMM_MAGNITUDE if self.auto_augment == "timm" else RAND_BINS - 1
        probabilities = ("color_jitter_probability", "grayscale", "blur", "solarize", "erasing")
        set_checked(
            self,
            rand_ops=checked_int("rand_ops", self.rand_ops, 1, MAX_RAND_OPS),
            rand_magnitude=checked_int("rand_magnitude", self.rand_magnitude, 0, most),
            rand_magnitude_std=checked_number("rand_magnitude_std", self.rand_magnitude_std, 0),
            three_augment=checked_bool("three_augment", self.three_augment),
            color_jitter=jitter,
            blur_sigma=checked_interval("blur_sigma", self.blur_sigma, highest=_MAX_BLUR_SIGMA),
            solarize_threshold=checked_int("solarize_threshold", self.solarize_threshold, 0, 256),
            **{name: checked_number(f"{name}, a probability,", getattr(self, name), 0, 1) for name in probabilities},
            mixup=checked_number("mixup", self.mixup, 0),
            cutmix=checked_number("cutmix", self.cutmix, 0),
        )

    @property
    def changes_pixels(self) -> bool:
        """Whether any operation works on uint8 pixels, before normalising."""
        drawn = self.three_augment or self.grayscale > 0 or self.blur > 0 or self.solarize > 0
        return self.auto_augment is not None or self.jitters or drawn

    @property
    def moves_pixels(self) -> bool:
        """Whether pixels move within an image: masks, boxes and keypoints then follow."""
        return self.auto_augment is not None

    @property
    def jitters(self) -> bool:
        """Whether color_jitter has any effect."""
        return self.color_jitter is not None and any(self.color_jitter) and self.color_jitter_probability > 0

    @property
    def of_colour(self) -> tuple[str, ...]:
        """Settings that need red, green and blue."""
        found = {
            "auto_augment": self.auto_augment is not None,
            "three_augment": self.three_augment,
            "color_jitter": self.jitters,
            "grayscale": self.grayscale > 0,
        }
        return tuple(name for name, is_set in found.items() if is_set)

    @property
    def unfused(self) -> tuple[str, ...]:
        """Settings that the fused kernels do not support; if there are any, the batch stage uses torch's kernels."""
        found = {
            "auto_augment": self.auto_augment == "timm",
            "three_augment": self.three_augment,
            "blur": self.blur > 0,
        }
        return tuple(name for name, is_set in found.items() if is_set)

    @property
    def mixes(self) -> bool:
        """Whether pairs of samples are mixed, so that labels become soft targets."""
        return self.mixup > 0 or self.cutmix > 0

    @property
    def active(self) -> bool:
        """Whether any augmentation has an effect."""
        return self.changes_pixels or self.erasing > 0 or self.mixes


NO_AUGMENTATIONS = Augmentations()
