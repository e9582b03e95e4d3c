"""A few images of a data set, spread over it, as a data set of their own."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from penstock.loaders.sources.contract import Source


class SampledSource:
    """At most `count` images of `source`, at equal distances. See Source for the methods."""

    def __init__(self, source: Source, count: int) -> None:
        if count < 1:
            raise ValueError(f"a sample is of at least 1 image, not {count}")
        self._source, count = source, min(count, len(source))
        self._indices = np.linspace(0, len(source), count, endpoint=False).astype(np.int64)
        self.classes, self.skipped = source.classes, source.skipped
        self.fingerprint = hashlib.blake2b(f"{source.fingerprint} / {count}".encode(), digest_size=32).hexdigest()

    def __len__(self) -> int:
        return len(self._indices)

    def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
        """See Source."""
        return self._source.read(int(self._indices[index]))

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See Source."""
        return self._source.labels(self._indices[indices])

    def path(self, index: int) -> bytes:
        """See Source."""
        return self._source.path(int(self._indices[index]))

    def describe(self) -> str:
        """See Source."""
        return f"a sample of {len(self):,} of {self._source.describe()}"
