"""Tokenizers as users write them, in a module, since worker processes import them by name."""

from __future__ import annotations

from typing import Any

import torch

LENGTH = 6


def count_letters(text: str) -> list[int]:
    """Return the length of each word, padded and truncated to 6 tokens."""
    found = [len(word) + 10 * ord(word[-1]) for word in text.split()][:LENGTH]
    return found + [0] * (LENGTH - len(found))


class CountLetters:
    """The same for a list of texts, as the tokenizers of open_clip: it keeps a cache of words."""

    def __init__(self) -> None:
        self.cache: dict[str, list[int]] = {}

    def __call__(self, texts: str | list[str]) -> torch.Tensor:
        several = [texts] if isinstance(texts, str) else texts
        return torch.tensor([self.cache.setdefault(text, count_letters(text)) for text in several])


class Padding:
    """A tokenizer with the interface of Hugging Face's; its state is changed by other calls."""

    model_max_length, pad_token_id = 8, 0

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}

    def __call__(self, texts: str | list[str], **settings: Any) -> dict[str, Any]:
        self.settings.update(settings)
        most = self.settings["max_length"] if self.settings.get("padding") == "max_length" else 0
        rows = [[1 + len(word) for word in text.split()] for text in ([texts] if isinstance(texts, str) else texts)]
        rows = [row[:most] for row in rows] if self.settings.get("truncation") else rows
        ids = [row + [0] * (most - len(row)) for row in rows]
        return {"input_ids": ids, "attention_mask": [[int(token > 0) for token in row] for row in ids]}
