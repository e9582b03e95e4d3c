"""Warnings about class names that are probably mistakes: missing labels, several spellings, texts, identifiers."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import ONE_CLASS, Source
from penstock.pipelines.errors import count_text, printable
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.messages.user_warnings import warn_user

# The texts that pandas.read_csv reads as missing, and "na"; "none" in lower case is a class, such as a grade.
_MISSING = frozenset(
    ("NA", "na", "N/A", "n/a", "NULL", "null", "NaN", "nan", "-NaN", "-nan", "None", "<NA>", "NaT", "#N/A")
)
_MISSING |= {"#NA", "#N/A N/A", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"}
_BLANK = re.compile(r"[-?.*_#'\"\s\u00ad\u2010-\u2015\u200b-\u200f\u2060\ufeff]+")
_FEW = 16  # so few samples may each have a different class
_MOST_LETTERS = 3  # more pairs of "a" and "A" are the characters of a text
# Numbers up to this one may be classes of a small part of the data; most large data sets have fewer classes.
_MANY_CLASSES = 1 << 16
_CHANCE = 14.0  # n samples of k classes are all of different classes with a probability of exp(-n * n / (2 * k))
_IN_LABELS = (
    "list the classes with classes=. With {mark} in the list it is a class; without it, its samples have no label"
)
IN_BOXES = "if it is a class, list the classes with names=; otherwise leave out its boxes"
IN_FOLDERS = "if it is a class, list the classes with classes=; otherwise remove its folder"
Labels = npt.NDArray[np.integer]


def may_be_missing(text: str) -> bool:
    """Return whether a text often stands for a missing value: NA, None, null, ?, -, or nothing visible."""
    return text in _MISSING or _BLANK.fullmatch(text) is not None


def cure_of_missing(labels: Iterable[object]) -> str:
    """Return advice about the first of some labels that may stand for a missing one; "" if there is none."""
    texts = (label.strip() for label in labels if isinstance(label, str))
    mark = next(filter(may_be_missing, texts), None)
    return "" if mark is None else f"; a missing label is an empty cell, not {printable(mark)}"


def warn_of_classes(
    classes: Sequence[bytes],
    num_samples: int = 0,
    labels: Callable[[], Labels] | None = None,
    *,
    name: str = "",
    cure: str = _IN_LABELS,
    option: str = "classes",
) -> None:
    """Warn of classes that are probably not meant; for classes that the user did not list.

    classes: the names by class number. labels: returns the class numbers of all samples; None for sets and folders.
    name: name of the labels. cure: what to do about a class that may stand for missing labels, its name as {mark}.
    option: the option that lists the classes.
    """
    if tuple(classes) == (ONE_CLASS,):
        return
    about = f"{name}: " if name else ""
    names = [os.fsdecode(each) for each in classes if not each.isdigit()]
    marks = [each for each in names if may_be_missing(each)]
    has_symbols = marks and len([each for each in names if not any(map(str.isalnum, each))]) > 1
    if has_symbols or len([each for each in names if len(each) == 1]) > _FEW:  # the characters of a text
        marks = [each for each in marks if each in _MISSING or not each.isprintable()]  # "-" and "?" are symbols
    for mark in marks:
        number = list(classes).index(os.fsencode(mark))
        count = 0 if labels is None else np.count_nonzero(labels() == number)
        some = f" ({count:,} of {num_samples:,} samples)" * (labels is not None)
        warn_user(
            f"{about}class {printable(mark)}{some} may mean that the label is missing: "
            f"{cure.format(mark=printable(mark))}"
        )
    _warn_of_spellings(_find_spellings(names), about, option)
    if labels is not None and num_samples >= _FEW and 2 * len(classes) > num_samples:
        _warn_of_rare_classes(labels(), classes, about)


def warn_of_joined_classes(sources: Iterable[Source]) -> None:
    """Warn of classes of different sources that differ only in their spelling."""
    of_sources = {tuple(source.classes) for source in sources}
    if len(of_sources) > 1:
        names = {os.fsdecode(name) for classes in of_sources for name in classes if not name.isdigit()}
        own = [[os.fsdecode(name) for name in classes] for classes in of_sources]
        known = [found for names in own for found in _find_spellings(names)]  # each source has warned of these
        _warn_of_spellings([each for each in _find_spellings(sorted(names)) if each not in known], "joined sources: ")


def _find_spellings(names: Iterable[str]) -> list[list[str]]:
    """Return the groups of names that differ only in their spelling, each sorted."""
    by_spelling: dict[str, list[str]] = {}
    for name in names:
        by_spelling.setdefault(_spell(name), []).append(name)
    return [sorted(found) for found in by_spelling.values() if len(found) > 1]


def _warn_of_spellings(several: Sequence[list[str]], about: str, option: str = "classes") -> None:
    letters = [found for found in several if all(len(name) == 1 for name in found)]
    if len(letters) > _MOST_LETTERS:
        several = [found for found in several if found not in letters]
    if several:
        more = f", and {count_text(len(several) - 1, 'more pair')}," * (len(several) > 1)
        warn_user(
            f"{about}classes {' and '.join(map(printable, several[0]))}{more} differ only in case, white space or "
            f"Unicode form: give them one name if they are one class, or list all classes with {option}= if not"
        )


def _spell(name: str) -> str:
    """Return a name in one case, with single spaces and composed characters, without invisible ones."""
    if not name.isascii():
        visible = (sign for sign in unicodedata.normalize("NFC", name) if unicodedata.category(sign) != "Cf")
        name = "".join(visible)
    return name.lower() if name.isalnum() else " ".join(name.split()).lower()


def _warn_of_rare_classes(labels: Labels, classes: Sequence[bytes], about: str) -> None:
    """Warn if most classes occur once, as in a column of texts or identifiers that are not classes."""
    counts = np.bincount(labels[labels >= 0])
    num_found = int(np.count_nonzero(counts))
    if 2 * num_found <= len(labels):
        return
    if all(name.isdigit() for name in classes):
        if _may_be_numbers(len(labels), num_found, len(classes)):
            return
        warn_user(
            f"{about}the labels of {len(labels):,} samples are {num_found:,} different numbers, which make "
            f"{len(classes):,} classes: for values to predict pass label='COLUMN:float' or floats; for identifiers "
            "choose another column with label=; for classes, list their names with classes="
        )
        return
    warn_user(
        f"{about}the labels of {len(labels):,} samples are {num_found:,} different names, such as "
        f"{shown(os.fsdecode(classes[0]))}, and each is a class: if these are texts such as captions, pass their place "
        "as text= and not as label=; otherwise choose another column with label=, or list the names with classes="
    )


def _may_be_numbers(num_samples: int, num_found: int, num_classes: int) -> bool:
    """Return whether so many different numbers may be class numbers, and not identifiers or values.

    They may be if they have few gaps (one sample per class), or if a small part of a large data set would look so:
    identifiers are large, or never repeat although chance would repeat some class numbers.
    """
    if num_classes < 2 * num_samples:
        return True
    repeats = num_found < num_samples or num_samples * num_samples < _CHANCE * num_classes
    return num_classes <= _MANY_CLASSES and repeats
