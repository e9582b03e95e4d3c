"""Engines with one wrong value, at a place that the test chooses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from penstock.bench.checks.parity import ParityEngine
from penstock.loaders import Batch, EpochLedger, Loader

OTHER = "torch/pillow"  # the altered engine


class Altered:
    """A loader that serves the batches of another with a change."""

    def __init__(self, loader: Loader, change: Change) -> None:
        self._loader, self._change = loader, change

    def batches(self) -> Iterator[Batch]:
        return map(self._change.of_batch, self._loader.batches())

    def ledger(self, epoch: int) -> EpochLedger:
        ledger = self._loader.ledger(epoch)
        return replace(ledger, bad=[bad._replace(**self._change.of_ledger) for bad in ledger.bad])

    def describe(self) -> dict[str, object]:
        return self._loader.describe()

    def __enter__(self) -> Altered:
        return self

    def __exit__(self, *_: object) -> None:
        self._loader.close()


class Change:
    """A change of fields in row 2 of step 1, and of every entry of the ledger."""

    def __init__(self, of_ledger: dict[str, Any] | None = None, **of_row: int) -> None:
        self._of_row, self.of_ledger = of_row, of_ledger or {}

    def of_batch(self, batch: Batch) -> Batch:
        if batch.step != 1:
            return batch
        parts = {}
        for name, change in self._of_row.items():
            part = getattr(batch, name)
            if isinstance(part, int):
                parts[name] = part ^ change
                continue
            parts[name] = part.clone() if hasattr(part, "clone") else part.copy()
            parts[name][2] ^= change
        return batch.replace(**parts)


class Apart(Altered):
    """A loader that changes the first `rows` images by `levels`."""

    def __init__(self, loader: Loader, levels: int, rows: int) -> None:
        super().__init__(loader, Change())
        self._levels, self._left = levels, rows

    def batches(self) -> Iterator[Batch]:
        for batch in self._loader.batches():
            images = batch.images.clone()
            chosen = images[: self._left]
            chosen += (chosen < 128).to(chosen.dtype) * 2 * self._levels - self._levels  # uint8 wraps: plus or minus
            self._left = max(0, self._left - len(images))
            yield batch.replace(images=images)


def serve_otherwise(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    whole = ParityEngine.open

    def open_changed(self: ParityEngine, settings: Any) -> Any:
        loader = whole(self, settings)
        return Altered(loader, change) if self.name == OTHER else loader

    monkeypatch.setattr(ParityEngine, "open", open_changed)
