"""Renumbers a source's classes by another list of classes, such as that of the training data."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import Source, refuse_targets
from penstock.loaders.data.sources.data import as_data
from penstock.loaders.data.sources.step import Step
from penstock.pipelines.errors import count_text
from penstock.pipelines.messages.checked import near_name, shown
from penstock.pipelines.messages.user_warnings import warn_user


def choose_classes(source: Source, classes: tuple[bytes, ...] | None) -> Source:
    """Return `source` with its classes numbered as in `classes`; `source` itself if that changes nothing.

    `classes` may contain names that no sample has, but must contain all names of the source. If the classes of the
    source are numbers, `classes` are their names. Raises ValueError.
    """
    if classes is None:
        return source
    refuse_targets(source, "classes=")
    if classes == tuple(source.classes):
        return source
    digest = hashlib.blake2b(repr(classes).encode(), digest_size=16).hexdigest()
    after = f", numbered as {count_text(len(classes), 'class')}"
    numbers = _number_classes(tuple(source.classes), classes)
    return as_data(source).add(Step(f"with classes {digest}", after=after, classes=classes, numbers=numbers))


def warn_of_text_order(source: Source) -> None:
    """Warn if class names are numbers but are not in numeric order."""
    names = tuple(getattr(source, "classes", ()))
    if len(names) > 1 and all(name.isdigit() for name in names):
        numbers = list(map(int, names))
        at = next((at for at in range(1, len(numbers)) if numbers[at - 1] > numbers[at]), None)
        if at is not None:
            before, behind = names[at - 1].decode(), names[at].decode()
            warn_user(
                f"class names that are numbers are sorted as text, {before!r} before {behind!r}, so class number "
                f"{at} is {behind!r}: pass classes=[...] for another order"
            )


def _number_classes(own: tuple[bytes, ...], chosen: tuple[bytes, ...]) -> npt.NDArray[np.int64]:
    """Return the number of each of a source's classes among the chosen ones. Raises ValueError."""
    number_of = {name: number for number, name in enumerate(chosen)}
    unknown = [name for name in own if name not in number_of]
    if unknown and own == tuple(b"%d" % number for number in range(len(own))) and len(own) <= len(chosen):
        if len(unknown) == len(own):
            return np.arange(len(own))
        known = next(name.decode() for name in own if name in number_of)
        raise ValueError(
            f"the data has class numbers from 0 to {len(own) - 1}, and classes lists {known!r} as a name, which is "
            "ambiguous: pass classes= where the data itself is opened, or names that are not numbers"
        )
    if unknown:
        first = unknown[0].decode("utf-8", "surrogateescape")
        near = near_name(first, [name.decode("utf-8", "surrogateescape") for name in chosen])
        more = f" and {len(unknown) - 1:,} more" if len(unknown) > 1 else ""
        raise ValueError(f"the data has the class {shown(first)}{more}, not in classes: add the missing names{near}")
    for names in (own, chosen):
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"classes must have different names, but two are {shown(twice.decode())}")
    return np.array([number_of[name] for name in own], np.int64)
