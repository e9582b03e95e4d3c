"""A path on the command line that may be a URL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_Base = type(Path())  # before Python 3.12 a subclass of Path itself has no flavour


class DataPath(_Base):  # type: ignore[valid-type, misc]
    """Be a path whose text is what was given, if that is a URL: pathlib would make one slash of two."""

    def __new__(cls, *parts: str | os.PathLike[str]) -> DataPath:
        """Return the path for the text that is the one part. Raises ValueError for none, which pathlib calls '.'."""
        if parts == ("",):
            raise ValueError("the path is empty: check the variable that it comes from")
        path: DataPath = super().__new__(cls, *parts)
        path._url = os.fspath(parts[0]) if len(parts) == 1 and "://" in os.fspath(parts[0]) else None
        return path

    def with_segments(self, *parts: Any) -> Path:
        """Return an ordinary path: what pathlib calls for paths that are derived from this one, since Python 3.12."""
        return Path(*parts)

    def __str__(self) -> str:
        """Return the text."""
        url: str | None = getattr(self, "_url", None)
        return url or str(super().__str__())

    def __fspath__(self) -> str:
        """Return the text."""
        return str(self)
