"""Keeps the thresholds of a split in a JSON file, so that the same samples are in the same part next time."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace

from penstock.loaders.system.json_file import ByteText, decode_json, write_json
from penstock.pipelines.errors import LoaderError

FORMAT = "penstock split 1"
_SETTINGS = ("parts", "seed", "by_class")


@dataclass(frozen=True, kw_only=True)
class SavedSplit:
    """Describe a split as its file does.

    Attributes:
        parts: the share of each part.
        seed: of the hashes.
        by_class: whether each class has thresholds of its own.
        thresholds: class name -> the hashes at which its second and later parts begin, 16 hex digits each; without
            by_class those of all samples, under "".
        format: version of the file, FORMAT.
    """

    parts: list[float]
    seed: int
    by_class: bool
    thresholds: dict[ByteText, list[str]]
    format: str = FORMAT

    def with_thresholds(self, thresholds: dict[bytes, list[int]]) -> SavedSplit:
        """Return a copy with these thresholds."""
        texts = {
            name.decode("utf-8", "surrogateescape"): [f"{value:016x}" for value in values]
            for name, values in thresholds.items()
        }
        return replace(self, thresholds=texts)

    def by_name(self) -> dict[bytes, list[int]]:
        """Return the thresholds as numbers. Raises ValueError for what is none."""
        found = {
            name.encode("utf-8", "surrogateescape"): [int(text, 16) for text in texts]
            for name, texts in self.thresholds.items()
        }
        for name, values in found.items():
            if (
                len(values) != len(self.parts) - 1
                or values != sorted(values)
                or not 0 <= values[0] <= values[-1] < 1 << 64
            ):
                raise ValueError(f"the thresholds of {name!r} are none")
        return found


def load_split(path: str | os.PathLike[str], wanted: SavedSplit) -> SavedSplit | None:
    """Return the split that is saved at `path`; None if no file is there.

    Raises LoaderError E-STATE for a file that is no split, or one with other settings than `wanted`.
    """
    try:
        with open(path, "rb") as file:
            saved = decode_json(file.read(), SavedSplit)
        if saved.format != FORMAT:
            raise ValueError(f"its format is {saved.format!r}, not {FORMAT!r}")
        for name in _SETTINGS:
            then, now = getattr(saved, name), getattr(wanted, name)
            if then != now:
                fix = f"pass {name}={then!r}, or another name for another split"
                cause = f"the saved split has {name}={then!r}, requested is {now!r}"
                raise LoaderError("E-STATE", cause, fix=fix, path=os.fspath(path))
        saved.by_name()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        fix = "pass another name, or remove the file"
        raise LoaderError("E-STATE", f"the split cannot be read: {error}", fix=fix, path=os.fspath(path)) from error
    return saved


def save_split(path: str | os.PathLike[str], split: SavedSplit) -> None:
    """Write a split as JSON, completely or not at all. Raises OSError."""
    write_json(path, asdict(split))
