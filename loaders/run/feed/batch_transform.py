"""BatchTransform calls a function of the user's on each batch, on its device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock.loaders.make.engine_contract import HostBatch
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.messages.user_functions import describe_exception, takes_generator
from penstock.pipelines.plan.philox import STREAM_TRANSFORM, random_words, view_stream

_VIEW = 255  # a number for its draws that no view of an image has in practice
Views = tuple[torch.Tensor, ...]


class BatchTransform:
    """Call `function(images, labels)`, or `function(images, labels, generator)`, which returns both.

    The generator is a torch.Generator of the device; its seed follows from (seed, epoch, first sample of the batch).
    Raises ValueError for what is no function.
    """

    def __init__(self, function: Callable[..., Any], device: torch.device, seed: int) -> None:
        if not callable(function):
            raise ValueError(f"batch_transform must be a function of (images, labels), got {shown(function)}")
        self._function, self._device, self._seed = function, device, seed
        self._takes_generator = takes_generator(function, num_others=2)

    def __call__(self, views: Views, labels: Any, host: HostBatch) -> tuple[Views, Any]:
        """Return views and labels as the function returns them. Raises LoaderError E-DATASET for what it raises."""
        arguments: list[Any] = [views[0] if len(views) == 1 else views, labels]
        if self._takes_generator:
            stream = view_stream(STREAM_TRANSFORM, _VIEW)
            low, high = random_words(self._seed, host.cursor.epoch, host.index[:1], stream, 2)[0].tolist()
            arguments.append(torch.Generator(self._device).manual_seed(low | high << 32))
        try:
            images, labels = self._function(*arguments)
        except Exception as error:
            cause = f"batch_transform raised {describe_exception(error)}"
            raise LoaderError("E-DATASET", cause, fix="see the cause; it must return (images, labels)") from error
        found = (images,) if isinstance(images, torch.Tensor) else tuple(images)
        if any(len(view) != len(host.index) for view in found):
            got = ", ".join(str(len(view)) for view in found)
            cause = f"batch_transform must keep the {len(host.index)} rows of a batch, got {got}"
            raise LoaderError("E-DATASET", cause, fix="return an image for each row")
        if host.is_placed and [view.shape[-2:] for view in found] != [view.shape[-2:] for view in views]:
            got, given = (", ".join(str(list(view.shape)) for view in each) for each in (found, views))
            cause = f"batch_transform must keep the size of images, which the fields would not follow: {got} of {given}"
            raise LoaderError("E-DATASET", cause, fix="let the pipeline crop and resize")
        return found, labels
