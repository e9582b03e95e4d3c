"""Weights of samples, for draws with replacement: given for each sample or class, or balanced."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import Source, require_classes
from penstock.pipelines.errors import printable
from penstock.pipelines.messages.checked import shown


def checked_weights(weights: object, source: Source) -> npt.NDArray[np.float64]:
    """Return a weight per sample, float64. Raises ValueError."""
    if isinstance(weights, str):
        if weights != "balanced":
            raise ValueError(f"weights must be 'balanced', a dict or one number per sample, got {weights!r}")
        require_classes(source, "weights='balanced'")
        return _spread(np.ones(len(source.classes)), source)
    if isinstance(weights, Mapping):
        require_classes(source, "weights by class")
        return _spread(_class_shares(weights, source), source)
    weights = weights.detach().cpu() if hasattr(weights, "detach") else weights
    try:
        values = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"weights must be 'balanced', a dict or one number per sample, got {shown(weights)}") from None
    if values.shape != (len(source),):
        raise ValueError(f"weights must have shape [{len(source)}], one per sample, got {list(values.shape)}")
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(values.sum())
    if not is_finite or (values < 0).any() or not values.any():
        raise ValueError("weights and their sum must be finite and at least 0, and not all 0")
    return values


def _class_shares(weights: Mapping[Any, Any], source: Source) -> npt.NDArray[np.float64]:
    shares, numbers = np.zeros(len(source.classes)), {name: number for number, name in enumerate(source.classes)}
    given: dict[int, object] = {}
    for key, value in weights.items():
        number = _number_class(key, numbers)
        if number is None or not 0 <= number < len(shares):
            known = ", ".join(map(printable, source.classes[:5])) + ", ..." * (len(source.classes) > 5)
            raise ValueError(f"weights must name classes of the data ({known}), got {shown(key)}")
        if number in given:
            raise ValueError(f"weights name the same class twice, as {shown(given[number])} and as {shown(key)}")
        given[number] = key
        try:
            shares[number] = value
        except (TypeError, ValueError):
            raise ValueError(f"the weight of class {shown(key)} must be a number, got {shown(value)}") from None
    if not np.isfinite(shares).all() or (shares < 0).any():
        raise ValueError("weights must be finite and at least 0")
    return shares


def _number_class(key: object, numbers: Mapping[bytes, int]) -> int | None:
    """Return the class number for a class name or number; None if there is no such class.

    Raises ValueError for a number that is also the name of another class.
    """
    if isinstance(key, (bool, np.bool_)):  # the labels True and False are classes with these names
        return numbers.get(str(key).encode("ascii"))
    if isinstance(key, (int, np.integer)):
        named = numbers.get(str(key).encode("ascii"), key)
        if named != key:
            raise ValueError(
                f"the key {key} of weights is ambiguous: the class named '{key}' has number {named}; write class "
                "names as strings"
            )
        return int(key)
    return numbers.get(os.fsencode(key)) if isinstance(key, (str, bytes, os.PathLike)) else None


def _spread(shares: npt.NDArray[np.float64], source: Source) -> npt.NDArray[np.float64]:
    """Return a weight per sample: the share of its class, divided equally among the samples of the class."""
    labels = source.labels(np.arange(len(source), dtype=np.int64))
    counts = np.bincount(labels, minlength=len(shares))
    parts = np.divide(shares, counts, out=np.zeros(len(shares)), where=counts > 0)
    if not parts.any():
        raise ValueError("weights must be above 0 for a class that has samples")
    weights: npt.NDArray[np.float64] = parts[labels]
    return weights
