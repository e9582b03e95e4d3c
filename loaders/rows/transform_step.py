"""TransformStep has transforms of the user's make the rows of a slot from crops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from penstock.loaders.rows.layout import Slot
from penstock.loaders.rows.own_transform import draw_words
from penstock.loaders.rows.producer_settings import ProducerSettings
from penstock.loaders.sources.source_faults import name_sample
from penstock.loaders.stream.engine_contract import Cursor
from penstock.pipelines.errors import LoaderError


class TransformStep:
    """Run transforms on the crops of a batch; belongs to one thread, whose memory for crops it keeps."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._crops = np.empty(0, np.uint8)

    def begin(self, cursor: Cursor, slot: Slot) -> Slot:
        """Return memory for the crops of the rows of `slot`, of the batch at `cursor`."""
        layout = self._settings.plan(cursor).layout._replace(batch_size=len(slot.rows))
        if self._crops.nbytes < layout.num_bytes:
            self._crops = np.empty(layout.num_bytes, np.uint8)
        return Slot(layout, self._crops, slot.rows)

    def finish(
        self,
        cursor: Cursor,
        crops: Slot,
        slot: Slot,
        working_on: Callable[[int], None],
        keys: npt.NDArray[np.int64] | None,
    ) -> None:
        """Make the images of `slot` from `crops` and copy the rest; padding becomes zeros. Raises LoaderError."""
        for name, made in crops.extras.items():
            for array, crop in zip(slot.extras[name], made, strict=True):
                array[...] = crop
        numbers = slot.rows["index"].astype(np.int64) if keys is None else keys
        served = np.flatnonzero(slot.rows["index"] >= 0).tolist()
        for view, own in enumerate(self._settings.transforms):
            source, images = crops.images[view], slot.images[view]
            if own is None:
                images[...] = source
                continue
            words = draw_words(self._settings.schedule.seed, cursor.epoch, numbers, view)
            images[slot.rows["index"] < 0] = 0
            for row in served:
                sample = int(slot.rows["index"][row])
                working_on(sample)
                try:
                    images[row] = own(source[row], words[row])
                except LoaderError as error:
                    where = {"sample": sample, "path": name_sample(self._settings.source, sample) or None}
                    raise error.locate(**where) from error.__cause__
