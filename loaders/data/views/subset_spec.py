"""Parses the option `subset=`: indices, a mask, a slice, or a file of indices."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.loaders.system.json_file import decode_json
from penstock.pipelines.errors import LoaderError, printable
from penstock.pipelines.messages.checked import shown

SubsetSpec = slice | range | str | os.PathLike[str] | Sequence[int] | npt.NDArray[Any] | torch.Tensor | None
_FILES = (".npy", ".txt", ".json")
_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)"
_SLICE = re.compile(rf"\s*({_NUMBER}%?)?\s*:\s*({_NUMBER}%?)?\s*(?::\s*([+-]?\d+)?\s*)?")
_FORMS = (
    "indices, a mask, a range, a slice such as ':0.9', '10%:50%' or '100:200', or a file of indices (.npy, .txt, .json)"
)


def parse_subset(spec: Any, num_samples: int) -> npt.NDArray[np.int64]:
    """Return the indices (int64 [n]) that `spec` selects from `num_samples` samples.

    spec: indices (integers from 0, each once) as a list, an array or a tensor; a mask (bool [num_samples]); a range; a
    slice or the string of a slice, in which integers are counts, numbers with a point are fractions of the samples, and
    numbers with % are percentages; the path of a .npy, .txt or .json file of indices.

    Raises ValueError for anything else, LoaderError E-NODATA for a missing file.
    """
    if isinstance(spec, str) and not spec.lower().endswith(_FILES):
        spec = _read_slice(spec)
    if isinstance(spec, slice):
        return _cut_slice(spec, num_samples)
    if isinstance(spec, (str, os.PathLike)):
        return _checked_indices(_read_file(spec), num_samples)
    if isinstance(spec, (int, float, np.number)) and not isinstance(spec, bool):
        raise ValueError(f"subset must be {_FORMS}, got {shown(spec)}: for the first samples pass ':{spec}'")
    if isinstance(spec, (set, frozenset)):
        raise ValueError("subset must have an order, got a set: pass sorted(indices)")
    return _checked_indices(spec, num_samples)


def is_slice(spec: SubsetSpec) -> bool:
    """Return whether `spec` is a slice, the string of a slice, or a range."""
    return isinstance(spec, (slice, range)) or (isinstance(spec, str) and not spec.lower().endswith(_FILES))


def _read_slice(text: str) -> slice:
    found = _SLICE.fullmatch(text)
    if found is None:
        hint = f": for the first samples pass ':{text}'" if _SLICE.fullmatch(f":{text}") else ""
        raise ValueError(f"subset must be {_FORMS}, got {text!r}{hint}")
    start, stop = (None if part is None else _read_number(part) for part in found.group(1, 2))
    return slice(start, stop, None if found[3] is None else int(found[3]))


def _read_number(text: str) -> int | Fraction:
    if text.endswith("%"):
        return Fraction(text[:-1]) / 100
    return Fraction(text) if "." in text else int(text)


def _cut_slice(spec: slice, num_samples: int) -> npt.NDArray[np.int64]:
    start, stop = (_find_boundary(part, num_samples) for part in (spec.start, spec.stop))
    try:
        return np.arange(num_samples, dtype=np.int64)[start : stop : spec.step]
    except (TypeError, ValueError):
        raise ValueError(f"a slice must have integers or fractions and a nonzero step, got {shown(spec)}") from None


def _find_boundary(value: Any, num_samples: int) -> Any:
    """Return a slice boundary as an integer: for a fraction, the count below it, from the end if it is negative."""
    if isinstance(value, (float, np.floating)):
        value = Fraction(str(value))  # exactly 0.3, not the double below it
    if not isinstance(value, Fraction):
        return value
    if not -1 <= value <= 1:
        raise ValueError(f"a fraction in a slice must be at most 1, got {float(value)}: write counts without a point")
    return int((value if value >= 0 else 1 + value) * num_samples)


def _read_file(path: str | os.PathLike[str]) -> object:
    name = os.fspath(path)
    try:
        if name.lower().endswith(".npy"):
            return np.load(name, allow_pickle=False)
        with open(name, "rb") as file:
            text = file.read()
        return (
            decode_json(text, list[object]) if name.lower().endswith(".json") else [int(word) for word in text.split()]
        )
    except FileNotFoundError as error:
        raise LoaderError("E-NODATA", "no such file of indices", fix="check its name", path=name) from error
    except OSError as error:
        cause = f"this file of indices cannot be read: {error.strerror or error}"
        raise LoaderError("E-ACCESS", cause, path=name) from error
    except (ValueError, EOFError) as error:
        raise ValueError(f"{printable(name)} must contain indices (integers): {error}") from error


def _checked_indices(values: object, num_samples: int) -> npt.NDArray[np.int64]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
    try:
        found = np.asarray(values)
    except ValueError:  # a list of lists of different lengths
        found = np.array(None)
    if found.ndim == 1 and not found.size:
        return np.empty(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "biu":
        raise ValueError(f"subset must be {_FORMS}, got {shown(values)}")
    if found.dtype.kind == "b":
        if len(found) != num_samples:
            raise ValueError(f"a mask must have one value per sample, {num_samples:,}, got {len(found):,}")
        return np.flatnonzero(found)
    outside = np.flatnonzero((found < 0) | (found >= num_samples))
    if len(outside):
        raise ValueError(f"indices must be from 0 to {num_samples - 1:,}, got {int(found[outside[0]]):,}")
    times = np.bincount(found.astype(np.int64))
    if times.max() > 1:
        if len(times) == 2 and len(found) == num_samples:
            raise ValueError("a mask must contain True and False, got 0 and 1: convert it, with .astype(bool) in numpy")
        twice = int(np.argmax(times > 1))
        raise ValueError(
            f"indices must be unique, because an epoch serves each sample once; {twice:,} occurs {int(times[twice])} "
            "times: pass numpy.unique(indices)"
        )
    return found.astype(np.int64)
