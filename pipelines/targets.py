"""Labels that are not class numbers: one array for a batch, or several by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

Targets = npt.NDArray[Any] | dict[str, npt.NDArray[Any]]


def parts_of(targets: Targets) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of targets by name; a single array has the name ""."""
    return targets if isinstance(targets, dict) else {"": targets}


def map_targets(function: Callable[[Any], Any], targets: Any) -> Any:
    """Apply `function` to an array (or tensor) of targets, or to each in a dict."""
    if isinstance(targets, dict):
        return {name: function(part) for name, part in targets.items()}
    return function(targets)
