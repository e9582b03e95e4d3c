"""How texts are served: which of a sample's texts, and as which tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import (
    FieldSource,
    Source,
    field_kinds_of,
    has_fields,
    has_labels,
)
from penstock.loaders.data.sources.source_faults import name_sample, naming_method
from penstock.loaders.make.engine_contract import HostBatch
from penstock.loaders.make.layout import Part, Slot
from penstock.loaders.make.own_tokenizer import MASK, OwnTokenizer
from penstock.loaders.order.schedule import Schedule
from penstock.pipelines.errors import LoaderError, count_text
from penstock.pipelines.messages.checked import checked_int, shown
from penstock.pipelines.plan.philox import STREAM_TEXT, random_words

TEXT = "text"  # name of the field
_LISTS = "json"  # kind of a field with a list of texts per sample
ALL, DRAW, FIRST = "all", "draw", "first"
_FEWER = "pass captions='draw' or 'first', a smaller number, or on_bad_sample='replace'"


@dataclass(frozen=True)
class TextRule:
    """How the field `text` is served.

    Attributes:
        captions: for a list of texts per sample, ALL, DRAW (one of them in each epoch), FIRST, or the number of first
            ones; None for one text per sample.
        tokenizer: makes the tokens; None for str.
    """

    captions: str | int | None
    tokenizer: OwnTokenizer | None

    @property
    def extras(self) -> tuple[tuple[str, tuple[Part, ...]], ...]:
        """The arrays of tokens in the layout of a batch: one for all views."""
        if self.tokenizer is None:
            return ()
        several = (self.captions,) if isinstance(self.captions, int) else ()
        parts = self.tokenizer.parts.items()
        return tuple((name, (Part((*several, *part.shape), part.dtype),)) for name, part in parts)

    @property
    def saved(self) -> dict[str, object]:
        """The settings for saved states."""
        saved = {"captions": None if self.captions == ALL else self.captions}
        saved["tokenize"] = None if self.tokenizer is None else self.tokenizer.name
        return {name: value for name, value in saved.items() if value is not None}

    def choose(self, values: Sequence[Any], seed: int, epoch: int, keys: npt.NDArray[np.int64]) -> list[Any]:
        """Return the text, or the list of texts, to serve of each sample; a LoaderError for one that lacks it.

        keys: keys of the samples' random draws, int64 [n].
        """
        if self.captions in (None, ALL):
            return list(values)
        words = random_words(seed, epoch, keys, STREAM_TEXT, 1)[:, 0].tolist() if self.captions == DRAW else values
        return [self._choose_of(value, word) for value, word in zip(values, words, strict=True)]

    def _choose_of(self, texts: Any, word: Any) -> Any:
        if not isinstance(texts, (list, tuple)) or not texts or not all(isinstance(text, str) for text in texts):
            return LoaderError("E-DATASET", f"captions needs a list of texts, got {shown(texts)}", fix="correct it")
        if isinstance(self.captions, int):
            if len(texts) < self.captions:
                cause = f"captions={self.captions}, but the sample has {count_text(len(texts), 'text')}"
                return LoaderError("E-DATASET", cause, fix=_FEWER)
            return list(texts[: self.captions])
        return texts[word * len(texts) >> 32 if self.captions == DRAW else 0]

    def fill(
        self,
        source: FieldSource,
        rows: list[int],
        crops: Slot,
        seed: int,
        epoch: int,
        keys: npt.NDArray[np.int64] | None,
    ) -> dict[int, LoaderError]:
        """Write the tokens of `rows` of `crops`, and return the errors in samples' texts by row.

        keys: keys of the random draws of all rows; None if the samples are the keys.
        """
        assert self.tokenizer is not None
        index = crops.rows["index"][rows].astype(np.int64)
        with naming_method("fields()"):
            values = source.fields(index)[TEXT]
        chosen = dict(zip(rows, self.choose(values, seed, epoch, index if keys is None else keys[rows]), strict=True))
        wrong = {row: text for row, text in chosen.items() if isinstance(text, LoaderError)}
        good = [row for row in rows if row not in wrong]
        arrays = {name: views[0] for name, views in crops.extras.items() if name in self.tokenizer.parts}
        try:
            _write(arrays, good, self._tokenize([chosen[row] for row in good]))
        except LoaderError:  # find the samples that cause it
            for row in good:
                try:
                    _write(arrays, [row], self._tokenize([chosen[row]]))
                except LoaderError as error:
                    wrong[row] = error
        return wrong

    def _tokenize(self, texts: list[Any]) -> Mapping[str, npt.NDArray[np.int64]]:
        assert self.tokenizer is not None
        if not isinstance(self.captions, int):
            return self.tokenizer(texts) if texts else {}
        found = self.tokenizer([text for several in texts for text in several]) if texts else {}
        return {name: tokens.reshape(len(texts), self.captions, -1) for name, tokens in found.items()}


def _write(
    arrays: Mapping[str, npt.NDArray[Any]], rows: list[int], tokens: Mapping[str, npt.NDArray[np.int64]]
) -> None:
    for name, found in tokens.items():
        arrays[name][rows] = found


def text_rule(source: Source, tokenize: Any, captions: object) -> TextRule | None:
    """Return how the texts of `source` are served, None for data without texts. Raises ValueError.

    tokenize, captions: the options of create_loader.
    """
    kinds = field_kinds_of(source)
    given = [name for name, value in (("tokenize", tokenize), ("captions", captions)) if value is not None]
    if not given:
        return None
    if TEXT not in kinds or kinds[TEXT].kind not in ("text", _LISTS):
        others = [name for name, kind in kinds.items() if kind.kind in ("text", _LISTS)]
        named = f"; name the field {shown(others[0])} 'text'" if others else ""
        raise ValueError(
            f"{given[0]} needs texts, but the data was opened without them: pass text= with their place, such as "
            f"text='txt' (members of tars, or files beside the images), text='json:caption' or the name of a column; "
            f"or with_fields(data, text=...){named}"
        )
    are_lists = kinds[TEXT].kind == _LISTS
    if are_lists and has_fields(source) and len(source):
        with naming_method("fields()"):
            first = source.fields(np.zeros(1, np.int64))[TEXT][0]
        if first is not None and not isinstance(first, (list, tuple)):
            raise ValueError(f"{given[0]} needs texts, or lists of texts, but the text of sample 0 is {shown(first)}")
    if not are_lists and captions is not None:
        raise ValueError("captions has no effect, because each sample has one text: do not pass it")
    if are_lists and not isinstance(captions, str) and captions is not None:
        captions = checked_int("captions", captions, 1)
    elif captions not in (None, ALL, DRAW, FIRST):
        raise ValueError(f"captions must be 'all', 'draw', 'first' or a number, got {shown(captions)}")
    if are_lists and tokenize is not None and captions in (None, ALL):
        raise ValueError(
            "each sample has a list of texts, and tokenize needs equally many of each: pass captions='draw' for one of "
            "them in each epoch, 'first', or a number"
        )
    if tokenize is not None and MASK in kinds:
        raise ValueError(f"tokenize adds the field {MASK!r}, but the data has a field of that name")
    chosen: Any = captions if captions is not None or not are_lists else ALL
    return TextRule(chosen, None if tokenize is None else OwnTokenizer(tokenize))


def serve_text(source: Source, rule: TextRule, schedule: Schedule, batch: HostBatch) -> HostBatch:
    """Return the batch with the tokens that workers made, or with the chosen texts. Raises LoaderError."""
    if rule.tokenizer is not None:
        tokens: dict[str, Any] = {name: batch.extras[name][0] for name in rule.tokenizer.parts}
    else:
        rows = np.flatnonzero(batch.index >= 0)
        keys = schedule.draw_keys(batch.cursor)
        texts = list(batch.fields[TEXT])
        numbers = (batch.index if keys is None else keys)[rows].astype(np.int64)
        values = [texts[row] for row in rows.tolist()]
        for row, text in zip(
            rows.tolist(), rule.choose(values, schedule.seed, batch.cursor.epoch, numbers), strict=True
        ):
            if isinstance(text, LoaderError):
                raise text.locate(sample=int(batch.index[row]), path=name_sample(source, int(batch.index[row])))
            texts[row] = text
        tokens = {TEXT: texts}
    fields: dict[str, Any] = {}
    for name, value in batch.fields.items():
        fields |= tokens if name == TEXT else {name: value}
    return replace(batch, fields=fields)


def has_only_text(source: Source) -> bool:
    """Return whether samples have texts and no labels, so that batches unpack as (images, texts)."""
    return TEXT in field_kinds_of(source) and not has_labels(source)
