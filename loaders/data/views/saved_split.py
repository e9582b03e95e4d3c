"""Keeps the thresholds of a split in a JSON file, so that the same samples are in the same part next time."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field

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
    thresholds: dict[ByteText, list[str]] = field(default_factory=dict)
    format: str = FORMAT


def load_split(path: str | os.PathLike[str], wanted: SavedSplit) -> dict[bytes, list[int]] | None:
    """Return the thresholds of the split that is saved at `path`, by class; None if no file is there.

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
        found = {
            name.encode("utf-8", "surrogateescape"): [int(text, 16) for text in texts]
            for name, texts in saved.thresholds.items()
        }
        for called, values in found.items():
            in_range = len(values) == len(saved.parts) - 1 and values[0] >= 0 and values[-1] < 1 << 64
            if not in_range or values != sorted(values):
                raise ValueError(f"the thresholds of {called!r} are none")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        fix = "pass another name, or remove the file"
        raise LoaderError("E-STATE", f"the split cannot be read: {error}", fix=fix, path=os.fspath(path)) from error
    return found


def save_split(path: str | os.PathLike[str], split: SavedSplit, thresholds: dict[bytes, list[int]]) -> None:
    """Write a split and its thresholds as JSON, completely or not at all. Raises OSError."""
    texts = {
        name.decode("utf-8", "surrogateescape"): [f"{value:016x}" for value in values]
        for name, values in thresholds.items()
    }
    write_json(path, {**asdict(split), "thresholds": texts})
