"""Reads the boxes of YOLO's text files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.fields.coco_document import FilePath
from penstock.loaders.data.fields.join import file_stem, sample_stems, stem
from penstock.loaders.data.fields.picture_files import whole_names
from penstock.loaders.data.labels.class_numbers import checked_names
from penstock.loaders.data.samples.columns import RaggedColumn
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.system.file_read import decode_text
from penstock.pipelines.errors import count_text, printable
from penstock.pipelines.fields.ragged import Ragged
from penstock.pipelines.messages.checked import checked_path
from penstock.pipelines.messages.user_warnings import warn_user

_MOST_CLASS = 2**31 - 1
_MOST_SHARE = 2.0  # share of the image's side; smaller excesses are refused once the image's size is known


class TextFiles(RaggedColumn):
    """The values of each sample's text file, which has the sample's name in `folder`."""

    def __init__(self, values: Ragged, folder: str) -> None:
        super().__init__(values)
        self._folder = folder

    def path(self, _row: int, name: bytes) -> bytes:
        """Return the path of the text file of the sample named `name`."""
        name = os.path.basename(name) if os.path.isabs(name) else name
        return os.path.join(os.fsencode(self._folder), os.path.splitext(name)[0] + b".txt")


def read_yolo(
    source: Source, folder: FilePath, names: Sequence[str] | Mapping[int, str] | None
) -> tuple[Ragged, tuple[bytes, ...]]:
    """Return boxes, centre and sides as shares of the image, float32 [4], with class numbers; and the class names.

    Raises ValueError for a folder without a matching file, and for lines other than "class x y width height".
    """
    checked_path("yolo", folder)
    classes = checked_names(names) or ()
    most = len(classes) - 1 if classes else _MOST_CLASS
    found, stems = [], sample_stems(source, "text files")
    for name in stems:
        path = os.path.join(folder, f"{name}.txt")
        found.append(_read_file(path, most) if os.path.exists(path) else None)
    if not any(each is not None for each in found):
        wanted = printable(f"{stems[0]}.txt") if stems else "no name"
        why = f"the first one would be {wanted}" if os.path.isdir(folder) else "there is no such folder"
        raise ValueError(f"no image has a text file with its name in {printable(str(folder))}: {why}")
    _warn_of_others(folder, set(map(file_stem, whole_names(source))))
    lengths = np.array([0 if each is None else len(each) for each in found], np.int64)
    values = np.concatenate([each for each in found if each is not None])
    return Ragged(lengths, (values[:, 1:].astype(np.float32), values[:, 0].astype(np.int64))), classes


def _read_file(path: str, most: int) -> npt.NDArray[np.float64]:
    lines = [line.split() for line in _read_text(path).splitlines() if line.strip()]
    if not lines:
        return np.zeros((0, 5))
    try:
        values = np.array(lines, np.float64)
    except ValueError:
        values = np.zeros((0, 0))
    if values.shape[1:] != (5,):
        raise ValueError(f"{printable(path)}: lines must be 'class x y width height' (outlines and poses are not read)")
    wrong = np.flatnonzero(~np.isfinite(values).all(1) | (values[:, 3:] < 0).any(1) | (values[:, 0] % 1 != 0))
    if len(wrong):
        raise ValueError(f"{printable(path)}: {' '.join(lines[wrong[0]])} is not a class number with a box")
    wrong = np.flatnonzero((values[:, 0] < 0) | (values[:, 0] > most))
    if len(wrong):
        wanted = "at least 0" if most == _MOST_CLASS else f"from 0 to {most}"
        raise ValueError(f"{printable(path)}: {' '.join(lines[wrong[0]])}: class numbers must be {wanted}")
    wrong = np.flatnonzero((values[:, 1:] > _MOST_SHARE).any(1))
    if len(wrong):
        cause = f"{printable(path)}: {' '.join(lines[wrong[0]])} is not in shares of the image, from 0 to 1"
        raise ValueError(f"{cause}: divide x and width by the image's width, y and height by its height")
    return values


def _read_text(path: str) -> str:
    """Return a text file. Raises ValueError for other files."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        return decode_text(data, errors="strict")
    except UnicodeDecodeError as error:
        raise ValueError(f"{printable(path)}: not a text file ({error.reason} at byte {error.start})") from None


def _is_text(file: str) -> bool:
    return file.lower().endswith(".txt") and not file.startswith(".")  # macOS writes "._a.txt"


def _warn_of_others(folder: FilePath, known: Set[str]) -> None:
    """Warn of text files without an image of the same name; classes.txt is a list of names.

    known: the names of all images without suffix, including images that a part of the data leaves out.
    """
    others = []
    for parent, _, files in os.walk(folder, followlinks=True):
        within = os.path.relpath(parent, folder)
        texts = (os.path.normpath(os.path.join(within, name)) for name in files if _is_text(name))
        others += [
            name
            for name in texts
            if not (name.endswith(".txt") and stem(name) in known) and os.path.basename(name).lower() != "classes.txt"
        ]
    if others:
        text = f"{count_text(len(others), 'text file')} of {printable(str(folder))}"
        warn_user(f"{text} have no image with their name and are left out, first {printable(min(others))}")
