"""Collects the texts of rows: one per row, or a list of texts, such as the captions of an image."""

from __future__ import annotations

import json
import re
from array import array
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.labels.label_text import plain_label
from penstock.loaders.data.labels.row_errors import Fail, where_is
from penstock.loaders.data.samples.columns import StoredValues
from penstock.loaders.data.samples.saved_texts import columns_of_texts
from penstock.pipelines.fields.ragged import Ragged, take_rows
from penstock.pipelines.messages.checked import checked_choice, shown

RAISE, LEAVE_OUT = "raise", "leave_out"
_KINDS = {"text": "one text", "json": "a list of texts"}  # kind of the field -> words
_FIX = f"give every sample a text, or pass missing_text='{LEAVE_OUT}' to leave such samples out"
_SURROGATE = re.compile("[\ud800-\udfff]")


class TextOptions(NamedTuple):
    """The options `text` and `missing_text`.

    Attributes:
        place: where the texts are; None for data without texts.
        missing: "raise" for samples without a text (null, NaN, empty, an empty list), or "leave_out".
    """

    place: object = None
    missing: str = RAISE

    @classmethod
    def checked(cls, place: object, missing: object) -> TextOptions:
        """Return checked options. Raises ValueError."""
        missing = checked_choice("missing_text", missing, (RAISE, LEAVE_OUT))
        if place is None and missing != RAISE:
            raise ValueError("missing_text has no effect without text: pass text= with the place of the texts")
        return cls(place, missing)

    @property
    def identity(self) -> tuple[object, ...]:
        """The options as parts of an identity; none without texts, so that the identity of other data is unchanged."""
        return () if self.place is None else tuple(self)


NO_TEXTS = TextOptions()


class TextCollector:
    """Collects one text per row, or a list of texts per row, without surrounding white space. Errors name the row."""

    def __init__(self) -> None:
        self._data, self._lengths, self._missing = bytearray(), array("q"), array("q")
        self._first_missing: tuple[Fail, int] | None = None
        self._kind, self._first = "", ""

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, value: object, fail: Fail, row: int) -> None:
        """Add the text of a row, or its list of texts. Raises the error of `fail`."""
        plain = value if isinstance(value, str) else plain_label(value)
        if isinstance(plain, (list, tuple)):
            kind, texts = "json", [text.strip() if isinstance(text, str) else "" for text in plain]
            if not all(texts):
                raise fail(row, f"a list of texts contains {shown(plain[texts.index('')])}", "leave it out of the list")
        elif plain is None or isinstance(plain, str):
            kind, texts = "text", list(filter(None, [(plain or "").strip()]))
        else:
            raise fail(row, f"a text must be a string or a list of strings, got {shown(value)}", "name other texts")
        before = len(self._data)
        if texts:
            self._add_texts(kind, texts, fail, row)
        else:
            self._missing.append(len(self))
            self._first_missing = self._first_missing or (fail, row)
        self._lengths.append(len(self._data) - before)

    def _add_texts(self, kind: str, texts: list[str], fail: Fail, row: int) -> None:
        if not self._kind:
            self._kind, self._first = kind, where_is(fail, row)
        if self._kind != kind:
            cause = f"{_KINDS[kind]}, but {self._first} has {_KINDS[self._kind]}"
            raise fail(row, cause, "use one text in all rows, or a list in all rows")
        if any(not text.isascii() and _SURROGATE.search(text) for text in texts):
            raise fail(row, f"the text {shown(texts[0])} is not UTF-8", "write it in UTF-8")
        self._data += texts[0].encode() if kind == "text" else json.dumps(texts).encode()

    def find_missing(self) -> npt.NDArray[np.bool_]:
        """Return the rows without a text, bool [rows]."""
        missing = np.zeros(len(self), bool)
        missing[np.frombuffer(self._missing, np.int64)] = True
        return missing

    def missing_error(self) -> Exception:
        """Return the error for the first row without a text, with the number of such rows."""
        assert self._first_missing is not None
        fail, row = self._first_missing
        fix = _FIX if len(self._missing) < len(self) else "pass text= with another place of the texts"
        return fail(row, f"no text; {len(self._missing):,} of {len(self):,} rows have none", fix)

    def finish(self, kept: npt.NDArray[np.bool_]) -> dict[str, StoredValues]:
        """Return the texts of the rows `kept` (bool [rows]), which all have one, as columns to store."""
        texts = Ragged(np.frombuffer(self._lengths, np.int64), (np.frombuffer(self._data, np.uint8),))
        return columns_of_texts(self._kind, texts if kept.all() else take_rows(texts, np.flatnonzero(kept)))
