"""The error contract: `LoaderError` with a stable code, a one-line message, a proposed fix and an exit code."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

PathText = TypeVar("PathText", str, bytes, "str | bytes")


class ErrorCode(NamedTuple):
    """Properties of one stable code.

    Attributes:
        exit_code: exit code of the `penstock` command when it ends with this error.
        fix: what the user can do, unless the error itself proposes something more precise.
    """

    exit_code: int
    fix: str


EXIT_OK, EXIT_USAGE, EXIT_DATA, EXIT_CACHE, EXIT_WORKER, EXIT_TIMEOUT, EXIT_RESOURCE = 0, 2, 3, 4, 5, 6, 7
CANNOT_ALLOCATE = "can't allocate memory"  # torch's CPU allocator raises a RuntimeError whose text contains this
# The fields of an error that locate it: how each is written to the line, and how it is read back.
_NUMBER, _WORD, _QUOTED = r"\d+", r"\S+", r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_PLACE: dict[str, tuple[str, Callable[[str], Any]]] = {
    "sample": (_NUMBER, int),
    "path": (_QUOTED, ast.literal_eval),
    "backend": (_WORD, str),
    "rank": (_NUMBER, int),
    "worker": (_NUMBER, int),
}
_LINE = re.compile(
    r"LoaderError\[(?P<code>E-[A-Z]+)\]"
    + "".join(f"(?: {name}=(?P<{name}>{pattern}))?" for name, (pattern, _) in _PLACE.items())
    + " cause=(?P<cause>.*): fix=(?P<fix>.*)"
)
# Secrets in an address: user and password, and everything after the path, where a signed address has its key. urllib3
# prints an address without its host, after "url: ".
_USER = re.compile(r"(?<=://)[^\s/?#'\"<>]*@")
_QUERY = re.compile(r"((?:://|url: /)[^\s?#'\"<>]*)[?#][^\s'\"<>]*")
MAX_SHOWN = 200  # characters shown of a value in a message
_SKIP = "repair or remove the file, or pass on_bad_sample='replace'"

ERROR_CODES: dict[str, ErrorCode] = {
    # 2: usage
    "E-STATE": ErrorCode(2, "load the state into a loader over the same data set, seed and pipeline"),
    "E-MISUSE": ErrorCode(2, "see the message"),
    # 3: data
    "E-EMPTY": ErrorCode(3, _SKIP),
    "E-FORMAT": ErrorCode(3, _SKIP),
    "E-TRUNC": ErrorCode(3, _SKIP),
    "E-EOI": ErrorCode(3, _SKIP),
    "E-CORRUPT": ErrorCode(3, _SKIP),
    "E-REPAIRED": ErrorCode(3, "repair or remove the file, or pass on_repaired='count' or 'replace'"),
    "E-UNSUPPORTED": ErrorCode(3, "convert the file to baseline JPEG or PNG, or pass on_bad_sample='replace'"),
    "E-BOMB": ErrorCode(3, "raise max_pixels if the image is genuine, or remove the file"),
    "E-MISSING": ErrorCode(3, "restore the file, or start again: the data is then indexed again"),
    "E-CHANGED": ErrorCode(3, "start again: the data is then indexed again"),
    "E-ACCESS": ErrorCode(3, "make the file readable for this user"),
    "E-READ": ErrorCode(3, "check the storage; the read failed after retries"),
    "E-NODATA": ErrorCode(3, "pass a folder that contains JPEG, PNG, WebP, BMP, GIF or TIFF files"),
    "E-EMPTYCLASS": ErrorCode(3, "remove the empty class folder, or pass allow_empty=True"),
    "E-MAXBAD": ErrorCode(3, "repair the data, or raise max_bad"),
    "E-DATASET": ErrorCode(3, "the dataset's __getitem__ raised: see the cause"),
    # 4: cache
    "E-CACHE": ErrorCode(4, "build the cache again"),
    "E-STALE": ErrorCode(4, "build the cache again"),
    # 5: workers
    "E-WORKER": ErrorCode(5, "check the sample named here; run with workers=0 to see the crash itself"),
    "E-OOM": ErrorCode(5, "lower workers, prefetch or batch_size, or raise the memory limit"),
    # 6: time
    "E-TIMEOUT": ErrorCode(6, "check the path named here (slow or dead storage), or raise watchdog_s"),
    # 7: resources
    "E-SHM": ErrorCode(7, "lower prefetch, workers or batch_size, or give the container more (--shm-size, --memory)"),
    "E-FD": ErrorCode(7, "raise the limit of open files (ulimit -n 4096)"),
    "E-MEM": ErrorCode(7, "lower prefetch, workers or batch_size, or raise the memory limit"),
    "E-NOSPC": ErrorCode(7, "free disk space or choose another folder"),
    "E-DECODER": ErrorCode(
        7, "pass decode='whole' or 'ours' to the backend, or on_bad_sample='replace'; penstock selftest --device cuda"
    ),
    "E-DEPENDENCY": ErrorCode(7, "install the package named here"),
}


def printable(path: bytes | str) -> str:
    """Quote a path as one line of ASCII, as `repr` does, with undecodable bytes and control characters escaped.

    Addresses are printed without the parts that hide_secrets hides. A text longer than any usual path, such as an image
    passed as a path, is shortened in the middle.
    """
    return ascii(shorten(hide_secrets(os.fsdecode(path) if isinstance(path, bytes) else path)))


def shorten(text: str) -> str:
    """Return the text; of more than 200 characters, only the beginning and the end."""
    return text if len(text) <= MAX_SHOWN else f"{text[:60]}...{text[63 - MAX_SHOWN :]}"


def one_line(text: str) -> str:
    """Return the text as one line: runs of white space become one space, unprintable characters are escaped."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def hide_secrets(text: PathText) -> PathText:
    """Return the text or path without user, password, query and fragment of the addresses (URLs) in it."""
    if isinstance(text, bytes):
        return os.fsencode(hide_secrets(os.fsdecode(text))) if b"://" in text else text
    return _QUERY.sub(r"\1", _USER.sub("", text))


class LoaderError(RuntimeError):
    """Report a failure with a stable code, in one line that says where it happened, what happened and what to do.

    `str(error)` is `LoaderError[E-TRUNC] sample=17 path='a.jpg' backend=torch rank=0 worker=4242 cause=...: fix=...`,
    without fields that are None and without the parts that hide_secrets hides. The error can be pickled, and built from
    its text alone, as torch does with a worker's error. Raises KeyError for a code not in ERROR_CODES, ValueError for a
    text without such a line.

    Attributes:
        code: a key of ERROR_CODES.
        exit_code: exit code of the `penstock` command when it ends with this error.
        cause: what went wrong, in one line.
        fix: what the user can do, in one line; the code's own fix unless another is given.
        sample: index of the sample in its data set.
        path: path of the sample's file.
        backend: name of the backend that raised.
        rank: number of the process in a distributed run.
        worker: process id of the worker.
    """

    sample: int | None
    path: bytes | str | None
    backend: str | None
    rank: int | None
    worker: int | None

    def __init__(
        self,
        code: str,
        cause: str | None = None,
        *,
        fix: str | None = None,
        sample: int | None = None,
        path: bytes | str | None = None,
        backend: str | None = None,
        rank: int | None = None,
        worker: int | None = None,
    ) -> None:
        place: dict[str, Any] = {"sample": sample, "path": path, "backend": backend, "rank": rank, "worker": worker}
        if cause is None:
            code, cause, fix, place = _read_line(code)
        self.code = code
        self.exit_code = ERROR_CODES[code].exit_code
        self.cause = one_line(hide_secrets(cause))
        self.fix = one_line(fix or ERROR_CODES[code].fix)
        self.sample, self.path, self.backend, self.rank, self.worker = place.values()
        if self.path is not None:
            self.path = hide_secrets(self.path)
        super().__init__(self.line())

    @property
    def of_sample(self) -> bool:
        """Whether the data caused the error, not the machine or the program: only then may another sample succeed."""
        return self.exit_code in (EXIT_DATA, EXIT_CACHE)

    def line(self) -> str:
        """Return the message; it never contains a line break."""
        place = {name: value for name, value in self._place().items() if value is not None}
        where = "".join(f" {n}={printable(v) if n == 'path' else one_line(str(v))}" for n, v in place.items())
        return f"LoaderError[{self.code}]{where} cause={self.cause}: fix={self.fix}"

    def locate(self, **place: Any) -> LoaderError:
        """Return a copy in which the fields of `place` that are still None are filled in."""
        merged = {name: place.get(name) if value is None else value for name, value in self._place().items()}
        return LoaderError(self.code, self.cause, fix=self.fix, **merged)

    def _place(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _PLACE}

    def __reduce__(self) -> tuple[object, ...]:
        return partial(LoaderError, self.code, self.cause, fix=self.fix, **self._place()), ()


def _read_line(text: str) -> tuple[str, str, str, dict[str, Any]]:
    """Return code, cause, fix and place from the last error line in `text`. Raises ValueError if there is none."""
    lines = list(_LINE.finditer(text))
    if not lines:
        raise ValueError(f"text without a LoaderError line: {text}")
    found = lines[-1]
    place = {name: None if found[name] is None else read(found[name]) for name, (_, read) in _PLACE.items()}
    return found["code"], found["cause"], found["fix"], place


def count_text(number: int, noun: str) -> str:
    """Return a number with its noun, plural unless it is 1: "1 class", "1,000 classes"."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"


def size_text(num_bytes: int) -> str:
    """Format a number of bytes in GB or MB for people to read."""
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.1f} MB"
