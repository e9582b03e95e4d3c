"""Converts exceptions of a source to the LoaderError of its sample, after retrying transient errors."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import Source, has_targets, sample_name
from penstock.loaders.system import retries
from penstock.loaders.system.file_read import read_error
from penstock.loaders.system.retries import can_heal, find_status, with_retries
from penstock.pipelines.errors import LoaderError, hide_secrets, printable
from penstock.pipelines.messages.checked import shown

Result = TypeVar("Result")

_STATUS_CODES = {401: "E-ACCESS", 403: "E-ACCESS", 404: "E-MISSING", 410: "E-MISSING"}
_FIXES = {
    "E-MISSING": "restore it, or pass on_bad_sample='replace'",
    "E-ACCESS": "check the permissions and the credentials of the source",
}
_LASTING = "check the storage or server, or pass on_bad_sample='replace'"
_LABELS_TRIED = 2
_OWN_CODE = "see the cause: the source's own code raised it; use workers=0 to debug it"


def call_source(method: Callable[..., Result], *arguments: object) -> Result:
    """Call a method of a source for one sample; retry transient errors after each of RETRY_DELAYS_S.

    Raises LoaderError from the source's exception: E-MISSING, E-ACCESS, E-READ, or the code of `read_error`. A
    LoaderError of the source and MemoryError are not changed.
    """

    def attempt() -> Result:
        try:
            return method(*arguments)
        except Exception as error:
            with contextlib.suppress(Exception):  # an HTTPError of urllib keeps its connection open until closed
                getattr(error, "close", int)()
            raise

    try:
        return with_retries(attempt)
    except (LoaderError, MemoryError):
        raise
    except Exception as error:
        raise _translate(error) from error


def call_by_name(source: Source, function: Callable[[str], Any], called: str = "the function") -> list[Any]:
    """Return the results of a user's function for the name of each sample. Raises ValueError if it raises."""
    found = []
    for index in range(len(source)):
        name = os.fsdecode(sample_name(source, index))
        try:
            found.append(function(name))
        except Exception as error:
            which = f"sample {index} ({printable(name)})"
            raise ValueError(f"{called} raised {type(error).__name__} for {which}: {error}") from error
    return found


@contextlib.contextmanager
def naming_method(method: str) -> Iterator[None]:
    """Convert exceptions of a source's `method` in the block to LoaderError E-DATASET, without a sample."""
    try:
        yield
    except LoaderError:
        raise
    except Exception as error:
        cause = f"the source's {method} raised {type(error).__name__}: {error}"
        raise LoaderError("E-DATASET", cause, fix="see the cause") from error


def checked_class_numbers(labels: Any, count: int) -> npt.NDArray[np.integer[Any]]:
    """Return the result of a source's labels() for `count` images. Raises LoaderError E-DATASET for other values."""
    if isinstance(labels, np.ndarray) and labels.shape == (count,) and labels.dtype.kind in "iu":
        if labels.min(initial=0) >= 0:
            return labels
        cause = f"the source's labels() must return class numbers from 0, got {labels.min()}"
        raise LoaderError("E-DATASET", cause, fix="leave such samples out of the source: -1 marks padding")
    got = f"{labels.dtype} {list(labels.shape)}" if hasattr(labels, "dtype") else shown(labels)
    cause = f"the source's labels() must return one class number per image, int64 [{count}], got {got}"
    raise LoaderError("E-DATASET", cause, fix="return an array, such as self._labels[indices]")


def check_source(source: Source) -> None:
    """Raise LoaderError E-DATASET if a source's classes or labels violate the protocol Source."""
    classes = source.classes
    if not isinstance(classes, (tuple, list)) or not all(isinstance(name, bytes) for name in classes):
        cause = f"the source's classes must be a tuple of bytes, got {shown(classes)}"
        raise LoaderError("E-DATASET", cause, fix="encode the names: tuple(name.encode() for name in names)")
    some = np.arange(min(len(source), _LABELS_TRIED), dtype=np.int64)
    with naming_method("labels()"):
        labels = checked_class_numbers(source.labels(some), len(some))
    if not has_targets(source) and labels.max(initial=-1) >= len(classes):
        cause = f"the source's labels() must be below the number of its classes, {len(classes):,}, got {labels.max()}"
        raise LoaderError("E-DATASET", cause, fix="number the classes from 0, and name each in classes")


def name_sample(source: Source, sample: int) -> bytes:
    """Return the source's name of a sample, without passwords and tokens of a URL; b"" if this fails."""
    try:
        path: bytes | str = source.path(sample)
        return hide_secrets(path if isinstance(path, bytes) else path.encode(errors="surrogateescape"))
    except Exception:  # must not hide the error that needs the name
        return b""


def _translate(error: Exception) -> LoaderError:
    status, code = find_status(error), "E-READ"
    if status is not None:
        code = _STATUS_CODES.get(status, code)
    elif isinstance(error, (FileNotFoundError, PermissionError)):  # fsspec also raises them without a number
        code = "E-MISSING" if isinstance(error, FileNotFoundError) else "E-ACCESS"
    elif isinstance(error, OSError):
        code = read_error(error, b"").code
    fix = _FIXES.get(code)
    if code == "E-READ" and not can_heal(error):  # otherwise the code's own fix, which mentions the retries
        fix = _LASTING if status is not None or isinstance(error, OSError) else _OWN_CODE
    return LoaderError(code, f"{type(error).__name__}: {error}{_place(error)}", fix=fix)


def _place(error: Exception) -> str:
    """Return the innermost line of the source's own file in the traceback of `error`, " (FILE:LINE)"; "" for none."""
    frames = [
        (frame.f_globals.get("__name__", "").startswith("penstock."), frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename not in (__file__, retries.__file__)
    ]
    of_user = [frame for frame in frames if not frame[0]]  # Data precedes a part's own source
    lines = [(file, line) for _, file, line in of_user or frames]
    own = [line for file, line in lines if file == lines[0][0]]
    return f" ({lines[0][0]}:{own[-1]})" if own else ""
