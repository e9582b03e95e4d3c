"""Transforms as users write them, in a module, since worker processes import them by name."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
import torch

Image = npt.NDArray[np.uint8]


def jitter(image: Image, generator: np.random.Generator) -> torch.Tensor:
    """Return floats [3, height, width], drawn from the generator."""
    return torch.from_numpy(image.astype(np.float32) * generator.uniform(0.5, 1.5)).permute(2, 0, 1)


def roll(image: Image, rng: np.random.Generator) -> Image:
    """Return the image moved sideways, uint8 [height, width, 3]."""
    return np.roll(image, int(rng.integers(1, 9)), 1)


def from_global_state(image: Image) -> npt.NDArray[np.float64]:
    """Draw from the random state of Python, numpy and torch."""
    drawn = random.random() + np.random.random() + float(torch.rand(()))  # noqa: NPY002
    return image.mean(2) * drawn


def mean(image: Image) -> npt.NDArray[np.float32]:
    """Return the mean without randomness; float32 [3]."""
    return np.float32(image.mean((0, 1)))


def from_own_state(image: Image, *, state: Any = np.random.default_rng(0)) -> npt.NDArray[np.float64]:  # noqa: B008
    """Draw from a private state, which no caller can set."""
    return image.mean((0, 1)) * state.random()


class Module(torch.nn.Module):
    """A transform like torchvision's: a module that draws from torch's state."""

    def forward(self, image: Image) -> torch.Tensor:
        return torch.from_numpy(image).permute(2, 0, 1) * torch.rand(())


class Compose:
    """Runs steps in order, as torchvision's does."""

    def __init__(self, *transforms: Any) -> None:
        self.transforms = list(transforms)

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class RandomHorizontalFlip:
    """Draws from torch's state; refuses arrays, as torchvision's first version does, or returns them unchanged."""

    def __init__(self, p: float = 0.5, *, refuses: bool = True) -> None:
        self.p, self.refuses = p, refuses

    def __call__(self, image: Any) -> Any:
        if isinstance(image, np.ndarray):
            if self.refuses:
                raise TypeError(f"img should be PIL Image. Got {type(image)}")
            return image
        return image.transpose(0) if torch.rand(1) < self.p else image  # PIL.Image.Transpose.FLIP_LEFT_RIGHT


class ToTensor:
    """Takes Pillow images and arrays."""

    def __call__(self, image: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(image, np.float32)).permute(2, 0, 1) / 255


class ToPILImage:
    """Takes arrays only."""

    def __call__(self, image: Any) -> Any:
        if not isinstance(image, np.ndarray):
            raise TypeError(f"pic should be Tensor or ndarray. Got {type(image)}.")
        return PIL.Image.fromarray(image)


class Normalize:
    """Takes tensors only."""

    def __call__(self, image: Any) -> Any:
        if not isinstance(image, torch.Tensor):
            raise TypeError(f"img should be Tensor Image. Got {type(image)}")
        return image - 0.5


for _step in (Compose, RandomHorizontalFlip, ToTensor, ToPILImage, Normalize):
    _step.__module__ = "torchvision.transforms.transforms"
sys.modules["torchvision.transforms.transforms"] = sys.modules[__name__]  # for pickle
torchvision_steps = Compose(RandomHorizontalFlip(), ToTensor(), Normalize())


def random_window(image: Image, generator: np.random.Generator) -> Image:
    """Return a window of an image of any size, uint8 [12, 16, 3]."""
    y, x = generator.integers(0, (image.shape[0] - 11, image.shape[1] - 15))
    return image[y : y + 12, x : x + 16].copy()


class ByName:
    """A transform like albumentations': images by name, and a private random state that can be seeded."""

    def __init__(self) -> None:
        self._state = random.Random()

    def set_random_seed(self, seed: int) -> None:
        self._state.seed(seed)

    def __call__(self, *, image: Image) -> dict[str, Any]:
        return {"image": np.moveaxis(image, 2, 0) * np.float32(self._state.random())}


ByName.__module__ = "albumentations.core.composition"


class Faulty:
    """Does what its fault names for images brighter than half."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def __call__(self, image: Image) -> Any:
        if image.mean() < 150:
            return image
        if self.fault == "raise":
            return image[0, 0, 3]  # the line that errors name
        return {"shape": image[1:], "dtype": image.astype(np.float32), "list": [1], "text": "text"}[self.fault]


def draws_for_some(image: Image) -> npt.NDArray[np.float32]:
    """Draw from the random state of Python for one image in four; return float32 [2]."""
    return np.float32([image.mean(), random.random() if int(image[0, 0, 0]) % 4 == 1 else 0])
