"""OwnTransform: a user's function for each crop, with randomness that depends on the sample alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.loaders.make.layout import BatchLayout, Part
from penstock.loaders.make.own.compose_fields import ComposeFields, RowFields, WrongResultError, is_albumentations
from penstock.loaders.make.own.global_draws import is_drawing, own_draws, seed_generators
from penstock.loaders.make.own.own_function import measure_lock, needs_script
from penstock.loaders.make.own.pil_images import (
    as_pillow,
    asks_for_pillow,
    can_be_pillow,
    first_step,
    from_pillow,
    is_torchvision,
)
from penstock.loaders.make.own.seeded_compose import SeededCompose
from penstock.loaders.make.own.worker_copies import Sharing, WorkerCopies, copied_if_changed
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.function_names import find_parts, name_function
from penstock.pipelines.image_types import Pixels
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.messages.user_functions import describe_exception, takes_generator
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.plan.philox import STREAM_TRANSFORM, random_words, view_stream
from penstock.pipelines.spec import ImagePipeline

WORDS = 4  # random words per call


class OwnTransform:
    """Call `function` for a crop, uint8 [height, width, channels], and return its result as an array.

    The call depends on the function:

    - a parameter named generator or rng, or a second one without default: `function(image, generator)`, with a
      numpy.random.Generator;
    - an albumentations transform: `function(image=image)["image"]`, seeded by its set_random_seed(); the
      fields that move with the image are passed and returned with it (ComposeFields);
    - a transform of torchvision that begins with a step for Pillow images, or one that fails with an array but not with
      a Pillow image: `function(image)` with a Pillow image of mode RGB or L; also returned ones are read;
    - otherwise: `function(image)`.

    It may also draw from the global random state of Python, numpy and torch, for all images or for some of them:
    the caller seeds that state (TransformStep). It can be pickled if `function` can.

    Attributes:
        part: shape and dtype of its results in a trial.
        name: name of the function in saved states.
        fields: passes the fields of each sample; None if only the image is passed.
        uses_global_state: whether it has drawn from the global random state, so that only one thread at a time
            may call it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        image: Part,
        moving: Mapping[str, FieldKind] = MappingProxyType({}),
        *,
        takes_whole: bool = False,
    ) -> None:
        """Try `function` on a generated image like `image`. Raises ValueError unless it returns an array or a tensor.

        moving: kinds of the fields to pass to it, by name. takes_whole: it gets whole images of any size, and is tried
        on two that have twice and three times the sides of `image`.
        """
        if not callable(function):
            raise ValueError(
                f"transform must be a function of an image, got {shown(function)}"
                + ": pass it as pipeline=" * isinstance(function, ImagePipeline)
            )
        self.function = function
        self._by_name = SeededCompose(function) if is_albumentations(function) else None
        self.fields = ComposeFields(function, moving) if moving else None
        self._copies = WorkerCopies(function, Sharing.SHARED)  # during the trial
        self._takes_generator = self._by_name is None and takes_generator(function, num_others=1)
        self.uses_global_state = self._takes_pillow = False
        self._takes_whole = takes_whole
        height, width, channels = image.shape
        if takes_whole:
            image = image._replace(shape=(2 * height, 3 * width, channels))
        self._trial_image = np.random.Generator(np.random.Philox(0)).integers(0, 256, image.shape).astype(image.dtype)
        self._trial_fields = None if self.fields is None else self.fields.example(*image.shape[:2])
        words = np.arange(WORDS, dtype=np.uint64)
        before = find_parts(function)
        with own_draws():
            self._choose_input(words)
            self.uses_global_state = is_drawing(lambda: self._try(words))
            first, second = self._try_seeded(words).copy(), self._try_seeded(words)
            if takes_whole:
                self._refuse_other_result((3 * height, 2 * width, channels), first, words)
        self.part = Part(first.shape, first.dtype.str)
        after = find_parts(function)  # parts that a call changes, such as counters, are not parameters
        self.name = name_function(function, [name for name in after if before.get(name) != after[name]])
        is_repeated = _repeats(first, second)
        if self._by_name is None:
            with own_draws():
                self._copies = copied_if_changed(function, self._try_other, may_copy=is_repeated)
                is_repeated = is_repeated and _repeats(first, self._try_seeded(words))  # after another image
        if not is_repeated:
            warn_user(
                "transform returns different results for the same image and random state, so the stream cannot be "
                "reproduced: draw from the generator that it receives as a second parameter",
            )
        if first.dtype.kind == "f" and first.ndim == 3 and first.shape[2] == image.shape[2] != first.shape[0]:
            warn_user(
                f"transform returns {_kind(first)}, channels last, and batches have this layout: for a model, return "
                "channels first (end it with ToTensorV2() or np.moveaxis(image, 2, 0)), or uint8, which is normalised",
            )

    def _refuse_other_result(
        self, shape: tuple[int, ...], first: npt.NDArray[np.generic], words: npt.NDArray[np.uint64]
    ) -> None:
        """Raise ValueError if the result for an image of another shape is not like the first one."""
        image, fields = self._trial_image, self._trial_fields
        self._trial_image = np.ascontiguousarray(image.reshape(shape))
        self._trial_fields = None if self.fields is None else self.fields.example(shape[0], shape[1])
        other = self._try_seeded(words)
        self._trial_image, self._trial_fields = image, fields
        if other.shape != first.shape or other.dtype != first.dtype:
            raise ValueError(
                f"crop='none' needs a transform that makes one size of all images, but it returns "
                f"{_kind(first)} and {_kind(other)} for two images: end it with a crop or a resize"
            )

    def _choose_input(self, words: npt.NDArray[np.uint64]) -> None:
        """Find out whether `function` takes an array or a Pillow image. Raises ValueError if it takes neither."""
        can_be = self._by_name is None and can_be_pillow(self._trial_image)
        self._takes_pillow = self._by_name is None and asks_for_pillow(self.function)
        if self._takes_pillow and not can_be:
            step, given = type(first_step(self.function)).__name__, _kind(self._trial_image)
            raise ValueError(f"transform begins with {step}, which needs a Pillow image, not {given}: {_PILLOW_NEEDS}")
        try:
            self._try(words)
        except ValueError:
            if self._takes_pillow or not can_be:
                raise
            self._takes_pillow = True
            try:
                self._try(words)
                return
            except ValueError as error:
                # It takes the image, but its result is wrong; or it takes no arrays anyway.
                if error.__cause__ is None or is_torchvision(self.function):
                    raise
            self._takes_pillow = False
            raise

    def _try_seeded(self, words: npt.NDArray[np.uint64]) -> npt.NDArray[np.generic]:
        if self.uses_global_state:
            seed_generators(words)
        return self._try(words)

    def _try(self, words: npt.NDArray[np.uint64]) -> npt.NDArray[np.generic]:
        try:
            return self._call(self._trial_image.copy(), words, self._trial_fields)[0]
        except WrongResultError as error:
            raise ValueError(str(error)) from None
        except Exception as error:
            given = _kind(self._trial_image) + (" and its fields" if self.fields else "")
            kind = "a Pillow image" if self._takes_pillow else "an image"
            fix = ": begin it with ToImage() if it needs a tensor" if self._takes_pillow else ""
            fix += "; with crop='none', pass the size of its results as size=" * self._takes_whole
            raise ValueError(f"transform raised {describe_exception(error)} for {kind} of {given}{fix}") from error

    def _try_other(self, function: Callable[..., Any], number: int) -> object:
        """Call a function for other draws than in the trial, and an image of another mean, mirrored."""
        words = np.arange(WORDS, dtype=np.uint64) + np.uint64(number + 1)
        if self.uses_global_state:
            seed_generators(words)
        darker = self._trial_image[:: 1 - 2 * number, ::-1] // (number + 2)
        return self._call_with(function, darker.astype(self._trial_image.dtype), words)

    def __call__(
        self, image: Pixels, words: npt.NDArray[np.uint64], fields: RowFields | None = None
    ) -> tuple[npt.NDArray[np.generic], RowFields | None]:
        """Return the result for `image` and random words, uint64 [WORDS] each below 2**32, and the moved fields.

        fields: the fields that move with the image, if they are passed to it. Raises LoaderError.
        """
        try:
            result, moved = self._call(image, words, fields)
        except WrongResultError as error:
            raise LoaderError("E-DATASET", str(error), fix="convert its result") from None
        except Exception as error:
            raise LoaderError("E-DATASET", f"transform raised {describe_exception(error)}", fix=_FIX) from error
        if (result.shape, result.dtype.str) != self.part:
            usual = f"{np.dtype(self.part.dtype)} {list(self.part.shape)}"
            cause = f"transform must return {usual} for each image, got {_kind(result)}"
            raise LoaderError("E-DATASET", cause, fix="return the same shape and dtype for all images")
        return result, moved

    def _call(
        self, image: Pixels, words: npt.NDArray[np.uint64], fields: RowFields | None = None
    ) -> tuple[npt.NDArray[np.generic], RowFields | None]:
        if self._by_name is not None:
            return self._call_by_name(self._by_name, image, int(words[0]), fields)
        result = self._copies.use(lambda function: self._call_with(function, image, words))
        return result, None

    def _call_with(
        self, function: Callable[..., Any], image: Pixels, words: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.generic]:
        given = as_pillow(image) if self._takes_pillow else image
        result = function(given, _generator(words)) if self._takes_generator else function(given)
        found = _as_array(from_pillow(result, image.shape[2]))
        return found.copy() if self._copies.sharing is Sharing.ALONE else found  # it may be the function's own buffer

    def _call_by_name(
        self, compose: SeededCompose, image: Pixels, seed: int, fields: RowFields | None
    ) -> tuple[npt.NDArray[Any], RowFields | None]:
        if self.fields is None or fields is None:
            return _as_array(compose(seed, image=image)["image"]), None
        size = image.shape[0], image.shape[1]
        returned = compose(seed, image=image, **self.fields.arguments(fields, size))
        result = _as_array(returned["image"])
        if self._takes_whole and result.ndim > 1:
            size = size_of_result(result.shape, image.shape[2])
        if not keeps_size(result.shape, size):
            raise WrongResultError(size_fault(self.fields.names, result.shape, size))
        return result, self.fields.take(returned, fields, size)

    def measure_lock(self) -> tuple[float, float]:
        """Return as measure_lock of own_function; the second time is infinite if only one thread may call it."""
        is_alone = self._copies.sharing is Sharing.ALONE or (self._by_name is not None and not self._by_name.is_copied)
        if self.uses_global_state or is_alone:
            return 0.0, math.inf
        words = np.zeros(WORDS, np.uint64)
        return measure_lock(lambda: self._call(self._trial_image, words))

    @property
    def needs_script(self) -> bool:
        """Whether a worker process cannot find it, or must import the user's script to find it."""
        return needs_script(self.function)


_PILLOW_NEEDS = "install pillow, and use depth=8 with channels 1 or 3, or begin it with ToImage()"
_FIX = "see the traceback; with workers=0 a debugger stops there"


def keeps_size(shape: Sequence[int], size: tuple[int, int]) -> bool:
    """Return whether a result has the (height, width) of its crop, with channels first, last or without channels."""
    return len(shape) > 1 and size in (tuple(shape[:2]), tuple(shape[-2:]))


def size_of_result(shape: Sequence[int], channels: int) -> tuple[int, int]:
    """Return (height, width) of a result with channels last, first or without channels."""
    is_last = len(shape) == 2 or shape[-1] == channels
    return (shape[0], shape[1]) if is_last else (shape[-2], shape[-1])


def size_fault(names: Sequence[str], shape: Sequence[int], size: tuple[int, int]) -> str:
    """Return the message that fields cannot follow a transform that changes the size of images."""
    fields = ", ".join(names)
    return (
        f"transform must keep the size of images, because {fields} would not follow: it returns {list(shape)} for "
        f"crops of {list(size)}; let the pipeline crop and resize"
    )


def list_transforms(transform: object, num_views: int) -> list[object]:
    """Return the function of each view, None for views without one; [] for none at all. Raises ValueError.

    transform: one function for all views, or a sequence with a function or None per view.
    """
    if transform is None:
        return []
    functions = list(transform) if isinstance(transform, (list, tuple)) else [transform] * num_views
    if len(functions) != num_views:
        raise ValueError(f"transform must be one function, or one per view ({num_views}), got {len(functions)}")
    return functions


def try_transforms(
    functions: Sequence[Any],
    images: Sequence[Part],
    fields: Sequence[Mapping[str, FieldKind]] | None = None,
    is_whole: Sequence[bool] | None = None,
) -> tuple[OwnTransform | None, ...]:
    """Return the transform of each view; its crops have the shape and dtype of `images`. Raises ValueError.

    fields: kinds of the fields that are passed to the function of each view, by name; by default none.
    is_whole: whether each view gets whole images.
    """
    whole = is_whole or [False] * len(functions)
    handed = fields or [{}] * len(functions)
    return tuple(
        None if function is None else OwnTransform(function, images[view], handed[view], takes_whole=whole[view])
        for view, function in enumerate(functions)
    )


def saved_functions(transforms: Sequence[OwnTransform | None], batch_transform: object) -> dict[str, object]:
    """Return the names of the user's functions for saved states, by argument, without those that are None.

    For transform it is a list with a name or None per view, or a single name if all views have the same.
    """
    names = [own and own.name for own in transforms]
    saved = {
        "transform": names if len(set(names)) > 1 else next(iter(names), None),
        "batch_transform": None if batch_transform is None else name_function(batch_transform),
    }
    return {argument: name for argument, name in saved.items() if name is not None}


def transformed_layout(crops: BatchLayout, transforms: Sequence[OwnTransform | None]) -> BatchLayout:
    """Return the layout of the results of `transforms` for `crops`; one transform per view, or none."""
    if not transforms:
        return crops
    pairs = zip(transforms, crops.images, strict=True)
    return crops._replace(images=tuple(part if own is None else own.part for own, part in pairs), crops=crops.images)


def draw_words(seed: int, epoch: int, keys: npt.NDArray[np.int64], view: int) -> npt.NDArray[np.uint64]:
    """Return the random words of the calls, uint64 [n, WORDS], for `keys`, int64 [n]."""
    return random_words(seed, epoch, keys, view_stream(STREAM_TRANSFORM, view), WORDS)


def _generator(words: npt.NDArray[np.uint64]) -> np.random.Generator:
    low, high = (int(words[i]) | int(words[i + 1]) << 32 for i in (0, 2))
    return np.random.Generator(np.random.Philox(key=np.array([low, high], np.uint64)))


def _as_array(result: object) -> npt.NDArray[np.generic]:
    if isinstance(result, torch.Tensor):
        if result.device.type != "cpu" or result.dtype == torch.bfloat16:
            got = _kind(result)
            raise WrongResultError(f"transform must return a tensor on the CPU, not of bfloat16, got {got}")
        result = result.detach().numpy()
    if not isinstance(result, np.ndarray) or result.dtype.kind not in "biuf" or not result.size:
        raise WrongResultError(f"transform must return one tensor or array of numbers, got {_kind(result)}")
    return result


def _repeats(first: npt.NDArray[np.generic], second: npt.NDArray[np.generic]) -> bool:
    """Return whether two results are equal; another shape is reported elsewhere."""
    return first.shape != second.shape or first.tobytes() == second.tobytes()


def _kind(result: object) -> str:
    if isinstance(result, (torch.Tensor, np.ndarray)):
        where = f" on {result.device}" if isinstance(result, torch.Tensor) else ""
        return f"{result.dtype} {list(result.shape)}{where}"
    return type(result).__name__
