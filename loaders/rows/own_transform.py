"""OwnTransform runs a function of the user's on each crop, with randomness that depends on the sample alone."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.loaders.rows.global_draws import is_drawing, own_draws, seed_generators
from penstock.loaders.rows.layout import BatchLayout, Part
from penstock.loaders.rows.sendable import needs_script
from penstock.pipelines.checked import shown
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.function_names import name_function, plain_attributes
from penstock.pipelines.image_types import Pixels
from penstock.pipelines.plan.philox import STREAM_TRANSFORM, random_words, view_stream
from penstock.pipelines.spec import ImagePipeline
from penstock.pipelines.user_functions import describe_exception, takes_generator
from penstock.pipelines.user_warnings import warn_user

WORDS = 4  # random words for each call
_TRIAL_S = 0.05  # of calls in one thread, before as many in each of two
_SERIAL = 1.5  # times as long: then they wait for each other
_by_name = threading.Lock()  # for transforms of albumentations, which hold one random state for all threads


class OwnTransform:
    """Call `function` for a crop, uint8 [height, width, channels], and return its result as an array.

    How it is called follows from what it is:

    - it takes a parameter named generator or rng, or a second one without default: `function(image, generator)`, with a
      numpy.random.Generator;
    - it is a transform of albumentations: `function(image=image)["image"]`, seeded by its set_random_seed();
    - otherwise: `function(image)`.

    It may draw from the global random state of Python, numpy and torch as well, for all images or for some of them:
    the caller seeds that state (TransformStep). It can be pickled if `function` can.

    Attributes:
        part: shape and dtype of its results, as a trial shows them.
        name: names the function in saved states.
        uses_global_state: whether it was seen to draw from the global random state, so that only one thread at a time
            may call it.
    """

    def __init__(self, function: Callable[..., Any], image: Part) -> None:
        """Try `function` on a made image like `image`. Raises ValueError if it does not return an array or a tensor."""
        if not callable(function):
            raise ValueError(
                f"transform must be a function of an image, got {shown(function)}"
                + ": pass it as pipeline=" * isinstance(function, ImagePipeline)
            )
        self.function = function
        self._takes_image_by_name = type(function).__module__.partition(".")[0] == "albumentations"
        self._takes_generator = not self._takes_image_by_name and takes_generator(function, num_others=1)
        self.uses_global_state = False
        self._trial_image = np.random.Generator(np.random.Philox(0)).integers(0, 256, image.shape).astype(image.dtype)
        words = np.arange(WORDS, dtype=np.uint64)
        attributes = plain_attributes(function)
        with own_draws():
            self.uses_global_state = is_drawing(lambda: self._try(words))
            first, second = self._try_seeded(words), self._try_seeded(words)
        self.part = Part(first.shape, first.dtype.str)
        kept = plain_attributes(function)  # those that a call changes, such as counters, are no parameters
        self.name = name_function(function, [name for name in kept if attributes.get(name) == kept[name]])
        if first.shape == second.shape and first.tobytes() != second.tobytes():
            warn_user(
                "transform returns different results for the same image and random state: the stream cannot be "
                "repeated. Draw from the generator that it gets as a second parameter",
            )

    def _try_seeded(self, words: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
        if self.uses_global_state:
            seed_generators(words)
        return self._try(words)

    def _try(self, words: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
        try:
            return self._call(self._trial_image.copy(), words)
        except _WrongResult as error:
            raise ValueError(str(error)) from None
        except Exception as error:
            image = _kind(self._trial_image)
            raise ValueError(f"transform raised {describe_exception(error)} for an image of {image}") from error

    def __call__(self, image: Pixels, words: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
        """Return the result for `image` and random words, uint64 [WORDS] each below 2**32. Raises LoaderError."""
        try:
            result = self._call(image, words)
        except _WrongResult as error:
            raise LoaderError("E-DATASET", str(error), fix="convert what it returns") from None
        except Exception as error:
            raise LoaderError("E-DATASET", f"transform raised {describe_exception(error)}", fix=_FIX) from error
        if (result.shape, result.dtype.str) != self.part:
            usual = f"{np.dtype(self.part.dtype)} {list(self.part.shape)}"
            cause = f"transform must return {usual} for each image, got {_kind(result)}"
            raise LoaderError("E-DATASET", cause, fix="return the same shape and dtype for all images")
        return result

    def _call(self, image: Pixels, words: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
        if self._takes_generator:
            return _as_array(self.function(image, _generator(words)))
        if self._takes_image_by_name:
            function: Any = self.function
            with _by_name:
                if hasattr(function, "set_random_seed"):  # older ones draw from the global random state
                    function.set_random_seed(int(words[0]))
                return _as_array(function(image=image)["image"])
        return _as_array(self.function(image))

    def holds_interpreter_lock(self) -> bool:
        """Say whether two threads that call it wait for each other; takes a tenth of a second."""
        if self.uses_global_state or self._takes_image_by_name:
            return True
        words, calls, started = np.zeros(WORDS, np.uint64), 0, time.perf_counter()
        while (alone := time.perf_counter() - started) < _TRIAL_S:
            self._call(self._trial_image, words)
            calls += 1

        def again() -> None:
            with contextlib.suppress(Exception):  # the stream will name the sample
                for _ in range(calls):
                    self._call(self._trial_image, words)

        threads, started = [threading.Thread(target=again) for _ in range(2)], time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - started > _SERIAL * alone

    @property
    def needs_script(self) -> bool:
        """Whether a worker process finds it only by importing the user's script, or not at all."""
        return needs_script(self.function)


_FIX = "see the traceback; with workers=0 a debugger stops there"


class _WrongResult(Exception):
    """Says what is wrong about a result."""


def checked_transforms(transform: Any, images: Sequence[Part]) -> tuple[OwnTransform | None, ...]:
    """Return the transform of each view, whose crops are like `images`. Raises ValueError.

    transform: one function for all views, or a sequence with one, or None, for each.
    """
    functions = list(transform) if isinstance(transform, (list, tuple)) else [transform] * len(images)
    if len(functions) != len(images):
        raise ValueError(f"transform must be one function, or one per view ({len(images)}), got {len(functions)}")
    pairs = zip(functions, images, strict=True)
    return tuple(None if function is None else OwnTransform(function, image) for function, image in pairs)


def saved_functions(transforms: Sequence[OwnTransform | None], batch_transform: Any) -> dict[str, Any]:
    """Return by argument the names of the user's functions for saved states, without those that are None.

    That of transform is a list of one, or None, for each view, unless all views have the same.
    """
    names = [own and own.name for own in transforms]
    saved = {
        "transform": names if len(set(names)) > 1 else next(iter(names), None),
        "batch_transform": None if batch_transform is None else name_function(batch_transform),
    }
    return {argument: name for argument, name in saved.items() if name is not None}


def transformed_layout(crops: BatchLayout, transforms: Sequence[OwnTransform | None]) -> BatchLayout:
    """Return the layout of what `transforms`, one for each view or none at all, make of `crops`."""
    if not transforms:
        return crops
    pairs = zip(transforms, crops.images, strict=True)
    return crops._replace(images=tuple(part if own is None else own.part for own, part in pairs), crops=crops.images)


def draw_words(seed: int, epoch: int, keys: npt.NDArray[np.int64], view: int) -> npt.NDArray[np.uint64]:
    """Draw the random words of the calls for samples of numbers `keys`, int64 [n]: uint64 [n, WORDS]."""
    return random_words(seed, epoch, keys, view_stream(STREAM_TRANSFORM, view), WORDS)


def _generator(words: npt.NDArray[np.uint64]) -> np.random.Generator:
    low, high = (int(words[i]) | int(words[i + 1]) << 32 for i in (0, 2))
    return np.random.Generator(np.random.Philox(key=np.array([low, high], np.uint64)))


def _as_array(result: Any) -> npt.NDArray[Any]:
    if isinstance(result, torch.Tensor):
        if result.device.type != "cpu" or result.dtype == torch.bfloat16:
            raise _WrongResult(f"transform must return a tensor on the CPU, and not of bfloat16, got {_kind(result)}")
        result = result.detach().numpy()
    if not isinstance(result, np.ndarray) or result.dtype.kind not in "biuf" or not result.size:
        raise _WrongResult(f"transform must return one tensor or array of numbers, got {_kind(result)}")
    return result


def _kind(result: Any) -> str:
    if isinstance(result, (torch.Tensor, np.ndarray)):
        where = f" on {result.device}" if isinstance(result, torch.Tensor) else ""
        return f"{result.dtype} {list(result.shape)}{where}"
    return type(result).__name__
