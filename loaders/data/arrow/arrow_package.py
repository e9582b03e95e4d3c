"""Imports pyarrow where it is needed, and turns its errors into LoaderError."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Any, Protocol

from penstock.loaders.system.file_read import read_error
from penstock.pipelines.errors import LoaderError


class SchemaField(Protocol):
    """Describe a column, as pyarrow.Field does."""

    name: str
    type: Any


class Schema(Protocol):
    """Describe the columns of a table, as pyarrow.Schema does."""

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
    """Raise LoaderError `code` for what pyarrow raises about the content of `path`, E-READ and others for the system's.

    A system's error has an error number; pyarrow also raises OSError, without one, for content that makes no sense.
    """
    pyarrow = import_pyarrow()
    try:
        yield
    except MemoryError as error:
        raise LoaderError("E-MEM", f"no memory to read it: {error}", path=path) from error
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise read_error(error, path) from error
        fix = "write or download the file again"
        raise LoaderError(code, f"{what}: {error}", fix=fix, path=path) from error
