"""SlotDataset lets torch's worker processes fill batch slots."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset, get_worker_info

from penstock.loaders.engine.batch_maker import BatchMaker
from penstock.loaders.engine.producer import ProducerSettings
from penstock.loaders.engine.slots import BatchSlots, Produced, WorkItem
from penstock.loaders.workers.progress import Progress


class SlotDataset(Dataset[Produced]):
    """A map-style dataset whose keys are work items and whose values are messages about filled slots."""

    def __init__(self, settings: ProducerSettings, slots: BatchSlots, progress: Progress) -> None:
        self._settings, self._slots, self._progress = settings, slots, progress
        self._maker: BatchMaker | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maker": None}  # decoders are made where they are used

    def __getitem__(self, item: WorkItem) -> Produced:
        if self._maker is None:
            info = get_worker_info()
            worker, own = (info.id, True) if info else (0, False)
            self._maker = BatchMaker(self._settings, self._slots, self._progress, worker, own_process=own)
        return self._maker.make(item)
