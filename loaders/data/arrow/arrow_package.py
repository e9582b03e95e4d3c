"""Imports pyarrow when it is needed, and converts its errors to LoaderError."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Any, Protocol

from penstock.loaders.system.file_read import read_error
from penstock.pipelines.errors import LoaderError


class SchemaField(Protocol):
    """A column, like pyarrow.Field."""

    name: str
    type: Any


class Schema(Protocol):
    """The columns of a table, like pyarrow.Schema."""

    names: list[str]
    metadata: dict[bytes, bytes] | None

    def __iter__(self) -> Iterator[SchemaField]: ...

    def field(self, name: str) -> SchemaField: ...

    def get_field_index(self, name: str) -> int: ...


def import_pyarrow() -> Any:
    """Return the module pyarrow, with `ipc` and `parquet`. Raises LoaderError E-DEPENDENCY without it."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        cause = f"Arrow and Parquet files need pyarrow ({error})"
        raise LoaderError("E-DEPENDENCY", cause, fix="pip install pyarrow") from error
    return pyarrow


@contextlib.contextmanager
def arrow_errors(path: bytes, code: str = "E-CORRUPT", what: str = "damaged") -> Iterator[None]:
    """Convert pyarrow's errors about the content of `path` to LoaderError `code`, and system errors to E-READ etc.

    A system error has an error number; pyarrow also raises OSError without a number for invalid content.
    """
    pyarrow = import_pyarrow()
    try:
        yield
    except MemoryError as error:
        raise LoaderError("E-MEM", f"not enough memory to read it: {error}", path=path) from error
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise read_error(error, path) from error
        fix = "write or download the file again"
        raise LoaderError(code, f"{what}: {error}", fix=fix, path=path) from error
