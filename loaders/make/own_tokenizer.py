"""OwnTokenizer: a user's tokenizer, whose results for all texts have one length."""

from __future__ import annotations

import copy
import functools
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.loaders.make.layout import Part
from penstock.loaders.make.own.own_function import measure_lock, needs_script
from penstock.loaders.make.own.worker_copies import Sharing, WorkerCopies, copied_if_changed, copy_function
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.function_names import find_parts, name_function
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.messages.user_functions import describe_exception
from penstock.pipelines.messages.user_warnings import warn_user

TOKENS, MASK = "text", "text_mask"  # names of the results in batches
_TRIED = ("a photo of a cat", "two dogs, a red ball and the blue sea behind them")
_MOST_LENGTH = 1 << 20  # Hugging Face's tokenizers without a limit have a far larger one
_FIX = (
    "pad and truncate all texts to one length, for example with functools.partial(tokenizer, padding='max_length', "
    "truncation=True, max_length=77)"
)
Tokens = Mapping[str, npt.NDArray[np.int64]]


class WrongTokensError(ValueError):
    """The result of a tokenizer cannot be served."""


class OwnTokenizer:
    """Call `function` for texts, and return its tokens as int64 arrays [texts, length].

    The function takes a text, or a list of texts. It returns token numbers: a list, an array or a tensor [length], or
    [texts, length]; or a dict of these with "input_ids" and optionally "attention_mask", as Hugging Face's tokenizers
    do. Such a tokenizer itself is called with padding and truncation to its `model_max_length`. Lists are preferred:
    a worker passes all texts of its rows. It can be pickled if `function` can.

    Attributes:
        parts: shape and dtype of its results for a text, by name in batches.
        name: name of the function in saved states.
    """

    def __init__(self, function: Any) -> None:
        """Try `function` on two texts. Raises ValueError unless it returns integers of one length."""
        if not callable(function):
            fix = f": pass AutoTokenizer.from_pretrained({function!r})" if isinstance(function, str) else ""
            raise ValueError(f"tokenize must be a function of a text, or a tokenizer, got {shown(function)}{fix}")
        self.function = _as_function(function)
        self._copies = WorkerCopies(self.function, Sharing.SHARED)  # during the trial
        before = find_parts(function)
        new_word = uuid.uuid4().hex  # so that a cache of words changes, and is not taken for a parameter
        with_new_word = [*_TRIED, new_word]
        self._takes_list = False
        alone = self._try(with_new_word)
        self._takes_list = True
        together = self._try(with_new_word)
        if isinstance(alone, ValueError) and isinstance(together, ValueError):
            raise alone
        self._takes_list = not isinstance(together, ValueError) and (
            isinstance(alone, ValueError) or _are_equal(alone, together)
        )
        found = together if self._takes_list else alone
        assert not isinstance(found, ValueError)
        self.parts = {name: Part(tokens.shape[1:], "<i8") for name, tokens in found.items()}
        is_repeated = _are_equal(found, self._call(with_new_word))
        after = find_parts(function)
        self.name = name_function(function, [name for name in after if before.get(name) != after[name]])
        # Tokenizers in Python hold the interpreter lock anyway, and may be large.
        self._copies = copied_if_changed(self.function, self._try_other, may_copy=False)
        if not is_repeated or self._depends_on_order():
            warn_user(
                "tokenize returns different results for the same text, at once or after other texts, so the stream "
                "cannot be reproduced: pass a tokenizer that does not draw, and whose vocabulary is complete"
            )

    def _depends_on_order(self) -> bool:
        """Return whether texts get other tokens after other texts, as with a vocabulary that grows by new words."""
        copied = self.function if self._copies.sharing is Sharing.SHARED else copy_function(self.function)
        if copied is self.function:
            return False
        one, other = uuid.uuid4().hex, uuid.uuid4().hex
        try:
            found = self._call_with(self.function, [one]), self._call_with(self.function, [other])
            reverse = self._call_with(copied, [other]), self._call_with(copied, [one])
        except Exception:  # errors are reported for the texts that cause them
            return False
        return not (_are_equal(found[0], reverse[1]) and _are_equal(found[1], reverse[0]))

    def _try_other(self, function: Any, number: int) -> Tokens:
        """Call a function for other texts than in the trial."""
        return self._call_with(function, [f"{number} {text} {uuid.uuid4().hex}" for text in _TRIED])

    def _try(self, texts: Sequence[str]) -> Tokens | ValueError:
        try:
            return self._call(texts)
        except WrongTokensError as error:
            return error
        except Exception as error:
            failure = ValueError(f"tokenize raised {describe_exception(error)} for the text {texts[0]!r}")
            failure.__cause__ = error
            return failure

    def _call(self, texts: Sequence[str]) -> Tokens:
        return self._copies.use(lambda function: self._call_with(function, texts))

    def _call_with(self, function: Any, texts: Sequence[str]) -> Tokens:
        if self._takes_list:
            return _as_tokens(function(list(texts)), len(texts))
        rows = [_as_tokens(function(text), 1) for text in texts]
        lengths = sorted({row[TOKENS].shape[1] for row in rows})
        if len(lengths) > 1:
            counts = ", ".join(map(str, lengths[:5]))
            raise WrongTokensError(f"tokenize must return equally many tokens for all texts, got {counts}: {_FIX}")
        if len({len(row) for row in rows}) > 1:
            raise WrongTokensError("tokenize must return an attention_mask for all texts, or for none")
        return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """Return the tokens of `texts`, int64 [texts, length] by name in batches. Raises LoaderError."""
        try:
            found = self._call(texts)
        except WrongTokensError as error:
            raise LoaderError("E-DATASET", str(error), fix="pad and truncate all texts to one length") from None
        except Exception as error:
            cause = f"tokenize raised {describe_exception(error)}"
            raise LoaderError(
                "E-DATASET", cause, fix="see the traceback; with workers=0 a debugger stops there"
            ) from error
        shapes = {name: tokens.shape[1:] for name, tokens in found.items()}
        if shapes != {name: part.shape for name, part in self.parts.items()}:
            usual, got = self.parts[TOKENS].shape[0], shapes[TOKENS][0]
            cause = f"tokenize must return {usual} tokens for each text, as for the first texts, got {got}"
            if usual == got:
                given = "without an attention_mask" if MASK in self.parts else "with an attention_mask"
                cause = f"tokenize returned tokens {given}, other than for the first texts"
            raise LoaderError("E-DATASET", cause, fix=_FIX)
        return found

    def measure_lock(self) -> tuple[float, float]:
        """Return as measure_lock of own_function, for a text."""
        cost, locked = measure_lock(lambda: self._call(_TRIED))
        return cost / len(_TRIED), locked / len(_TRIED)

    @property
    def needs_script(self) -> bool:
        """Whether a worker process cannot find it, or must import the user's script to find it."""
        return needs_script(self.function)


class _OfHuggingFace:
    """A tokenizer of Hugging Face that pads and truncates to `length` tokens; a copy, which no other code changes."""

    def __init__(self, tokenizer: Any, length: int) -> None:
        self._tokenizer, self._length = tokenizer, length

    def __call__(self, texts: list[str]) -> Any:
        return self._tokenizer(texts, padding="max_length", truncation=True, max_length=self._length)


def _as_function(function: Any) -> Any:
    """Return the function to call for a tokenizer. Raises ValueError for a tokenizer without a largest length.

    Hugging Face's tokenizers are copied: padding and truncation are part of their state, and other calls change it.
    """
    if isinstance(function, functools.partial):
        inner = function.func
        return (
            functools.partial(copy.deepcopy(inner), *function.args, **function.keywords) if _is_hf(inner) else function
        )
    if not _is_hf(function):
        return function
    length = function.model_max_length
    if not isinstance(length, int) or length > _MOST_LENGTH:
        raise ValueError(f"tokenize has no largest length (model_max_length): {_FIX}")
    return _OfHuggingFace(copy.deepcopy(function), length)


def _is_hf(function: object) -> bool:
    return hasattr(function, "model_max_length") and hasattr(function, "pad_token_id")


def _are_equal(one: Tokens | ValueError, other: Tokens | ValueError) -> bool:
    if isinstance(one, ValueError) or isinstance(other, ValueError):
        return False
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def _as_tokens(result: Any, count: int) -> dict[str, npt.NDArray[np.int64]]:
    """Return the result for `count` texts as int64 [count, length] by name. Raises WrongTokensError."""
    if isinstance(result, Mapping):
        if "input_ids" not in result:
            raise WrongTokensError(f"tokenize must return a dict with 'input_ids', got {shown(sorted(result))}")
        names = {TOKENS: "input_ids", MASK: "attention_mask"}
        return {name: _as_rows(result[key], count) for name, key in names.items() if key in result}
    return {TOKENS: _as_rows(result, count)}


def _as_rows(result: Any, count: int) -> npt.NDArray[np.int64]:
    if isinstance(result, torch.Tensor):
        result = result.detach().cpu().numpy()
    if isinstance(result, (list, tuple)):
        rows = [
            row for row in result if hasattr(row, "__len__") and not (isinstance(row, torch.Tensor) and not row.ndim)
        ]
        lengths = sorted(set(map(len, rows)))
        if len(lengths) > 1:
            counts = ", ".join(map(str, lengths[:5]))
            raise WrongTokensError(f"tokenize must return equally many tokens for all texts, got {counts}: {_FIX}")
    try:
        found = np.asarray(result)
    except ValueError:
        found = np.zeros(0)
    found = found[np.newaxis] if found.ndim == 1 and count == 1 else found
    if found.ndim != 2 or len(found) != count or not found.shape[1] or found.dtype.kind not in "iu":
        got = f"{found.dtype} {list(found.shape)}" if found.dtype != object and found.size else shown(result)
        texts = "a text" if count == 1 else f"{count} texts"
        raise WrongTokensError(
            f"tokenize must return integers [{'' if count == 1 else f'{count}, '}length] for {texts}, got {got}"
        )
    return found.astype(np.int64)
