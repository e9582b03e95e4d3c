"""What is known of a loader before its data is opened: errors of its arguments, and the resources it needs."""

from __future__ import annotations

import os
from typing import Any

import torch

from penstock.loaders.front.backend_choice import choose_named
from penstock.loaders.front.backends import BACKENDS
from penstock.loaders.front.open_source import split_options
from penstock.loaders.front.profile import DEFAULT_PROFILE
from penstock.loaders.make.layout import image_layout
from penstock.loaders.make.own_transform import list_transforms, transformed_layout, try_transforms
from penstock.loaders.order.bad_samples import BadSamplePolicy
from penstock.loaders.run.engine.slots import consumer_bytes
from penstock.loaders.run.workers.needs import Needs
from penstock.pipelines.spec import ImagePipeline


def check_arguments(
    *,
    backend: str = "torch",
    decoder: str | None = None,
    on_bad_sample: str = "raise",
    on_repaired: str | None = None,
    max_bad: int | float | None = None,
    profile: str | os.PathLike[str] = DEFAULT_PROFILE,
    **options: Any,
) -> None:
    """Raise the errors of create_loader that do not depend on the data, without a scan that may take minutes."""
    choose_named(backend, decoder, split_options(options)[1], profile)
    BadSamplePolicy(
        on_bad_sample=on_bad_sample, on_repaired="count" if on_repaired is None else on_repaired, max_bad=max_bad
    )


def loader_needs(
    backend: str,
    *,
    batch_size: int,
    size: tuple[int, int],
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    transform: Any = None,
    **options: Any,
) -> Needs:
    """Return the resources that a loader with these settings needs; `size` is (height, width). Raises ValueError."""
    chosen = BACKENDS[backend]
    layout = image_layout((ImagePipeline(size=size),), batch_size)
    if transform is not None:
        layout = transformed_layout(layout, try_transforms(list_transforms(transform, 1), layout.images))
    needs = chosen.needs(chosen.parse(options)[0], layout)
    return needs._replace(own_bytes=needs.own_bytes + consumer_bytes(layout, dtype, device))
