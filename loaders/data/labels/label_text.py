"""Parses a label, by the same rule for every container: a number, a list, a name, or missing."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
from collections.abc import Iterator
from typing import Any

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
WHOLE = re.compile(r"[+-]?[0-9]+")
# Texts that look like numbers: a decimal comma, thousands, percent and currency signs, several without brackets.
_DIGITS = r"([0-9]{1,3}(\.[0-9]{3})+(,[0-9]*)?|[0-9]+([,' _\u00a0][0-9]+)*(\.[0-9]*)?,?|[.,][0-9]+)"
_NEARLY = re.compile(
    rf"[$\u20ac\u00a3\u00a5]?\s*[-+\u2212]?\s*{_DIGITS}([eE][-+]?[0-9]+)?\s*[%\u2030$\u20ac\u00a3\u00a5]?"
    r"|[-+]?[0-9.]*[0-9](\s*[,;|]\s*[-+]?[0-9.]*[0-9]|\s+[-+]?[0-9.]*[0-9])+"
    r"|[({]\s*[-+0-9.][-+0-9.eE,;\s]*[)}]"
    r"|=?b?(?P<mark>['\"])\s*[-+]?[0-9.]*[0-9]\s*(?P=mark)"  # in quotes
    r"|<NA>"
)
# Values as Python, numpy and torch print them, which are not names: tensor(3), np.int64(3), array(['a']), set().
_PRINTED = re.compile(r"(tensor|array|set|frozenset|Decimal|(np|numpy|torch)\.\w+)\(.*\)", re.DOTALL)
_NO_COMMA = re.compile(r"['\"]\s+\w?['\"]")  # between the texts of a list: numpy prints ['a' 'b']
_LONGEST = 400  # longer texts are not checked for numbers: Python parses at most 4,300 digits
BOOLEANS = {"False": 0, "True": 1, "false": 0, "true": 1, "FALSE": 0, "TRUE": 1}
_MISSING = ("NAType", "NaTType")  # of pandas


def is_number(text: str) -> bool:
    """Return whether a text is a number, such as 7, -0.5 and 1e3."""
    return len(text) <= _LONGEST and _NUMBER.fullmatch(text) is not None


def read_text(text: str) -> object:
    """Return the label in a text: None, an int, a float, a list, or a name (str), without surrounding white space.

    An empty text is missing. 7 is an int, 7.0 and 7e0 are floats; a list is in the syntax of JSON or Python. Raises
    ValueError for a text that is nearly a number or a list, such as 1,5 and 5% and [1 2], for nan and inf, for other
    values printed by Python, numpy or torch ({'a', 'b'}, tensor(3)), and for several lines.
    """
    text = text.strip()
    if not text:
        return None
    if is_number(text):
        return int(text) if WHOLE.fullmatch(text) else float(text)
    if text[0] == "[":
        return _read_list(text)
    if _is_nearly_number(text) if len(text) <= _LONGEST else not text.strip("+-.0123456789"):
        raise ValueError("nearly a number")
    if text[0] in "({" and any(isinstance(found, (tuple, set, dict)) for _, found in _read_values(text)):
        raise ValueError("nearly a list")
    if _PRINTED.fullmatch(text):
        raise ValueError("a printed value")
    if "\n" in text:  # in a CSV, the rows between two stray quotes
        raise ValueError("more than one line")
    return text


def plain_label(label: Any) -> object:
    """Return a label as None if it is missing, or as a string, an int, a float, or another Python object.

    Booleans are the names True and False.
    """
    if hasattr(label, "detach"):
        label = label.detach().cpu()
    if hasattr(label, "tolist") and not isinstance(label, str):
        label = label.tolist()
    if isinstance(label, bytes):
        label = os.fsdecode(label)
    if isinstance(label, bool):
        return str(label)
    if isinstance(label, (str, int)):
        return label
    if type(label).__name__ in _MISSING:
        return None
    if hasattr(label, "__float__"):
        number = float(label)
        return None if number != number else number
    return label


def _read_list(text: str) -> list[object]:
    for is_json, found in _read_values(text):
        if isinstance(found, list) and (is_json or not _NO_COMMA.search(text)):
            return found
    raise ValueError("nearly a list")


def _is_nearly_number(text: str) -> bool:
    if _NEARLY.fullmatch(text):
        return True
    try:
        float(text)  # nan, inf, digits of other scripts, 1_000
    except ValueError:
        return False
    return True


def _read_values(text: str) -> Iterator[tuple[bool, object]]:
    """Yield (True, value) if the text is JSON, then (False, value) if it is a Python literal."""
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            yield read is json.loads, read(text)
