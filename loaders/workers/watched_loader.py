"""WatchedLoader is a DataLoader of torch over work items instead of samples, whose worker processes are watched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from penstock.loaders.workers.watch import WatchedIterator
from penstock.pipelines.errors import LoaderError


class WatchedLoader(DataLoader[Any]):
    """Hands the items of `sampler` to `dataset`, in worker processes if there are any, and yields what it returns.

    Args:
        on_death: as WatchedIterator takes it.
        on_silence: as WatchedIterator takes it.
        settings: more arguments of torch's DataLoader: dataset, sampler, num_workers and others.
    """

    def __init__(
        self,
        on_death: Callable[[int, int, str], LoaderError],
        on_silence: Callable[[int, int], LoaderError | None],
        **settings: Any,
    ) -> None:
        self._on_death, self._on_silence = on_death, on_silence
        # A generator of its own: torch draws a seed for each iterator, which must not disturb the user's generator.
        super().__init__(batch_size=None, collate_fn=_as_is, generator=torch.Generator(), **settings)

    def check_worker_number_rationality(self) -> None:
        """Say nothing: more workers than processors are worth it where reads block."""

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            return super()._get_iterator()
        return WatchedIterator(self, self._on_death, self._on_silence)


def _as_is(value: Any) -> Any:
    return value
