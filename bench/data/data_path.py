"""A path on the command line that may be a URL."""

from __future__ import annotations

import os
from pathlib import Path

_Base = type(Path())  # before Python 3.12 a subclass of Path itself has no flavour


class DataPath(_Base):  # type: ignore[valid-type, misc]
    """Be a path whose text is what was given, if that is a URL: pathlib would make one slash of two."""

    def __new__(cls, text: str | os.PathLike[str]) -> DataPath:
        """Return the path for `text`."""
        path: DataPath = super().__new__(cls, text)
        path._url = os.fspath(text) if "://" in os.fspath(text) else None
        return path

    def __str__(self) -> str:
        """Return the text."""
        url: str | None = getattr(self, "_url", None)
        return url or str(super().__str__())

    def __fspath__(self) -> str:
        """Return the text."""
        return str(self)
