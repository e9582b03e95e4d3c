"""Scans tar files for samples, several at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError

from penstock.loaders.data.remote.object_store import ObjectStore, is_url
from penstock.loaders.data.tars.tar_headers import TarReader, open_tar
from penstock.loaders.data.tars.tar_join import MemberJoin, TarSamples
from penstock.loaders.data.tars.tar_labels import LabelPlaces
from penstock.loaders.system.machine import available_cpus, many_workers
from penstock.pipelines.errors import LoaderError

_LOOK_EVERY_S = 0.1
_REMOTE_WORKERS = 64  # which mostly wait for answers
_FIX_EMPTY = "copy or write it again, or leave it out of the paths"


class _Stopped(Exception):
    """Nobody waits for the scan."""


class TarScan:
    """Scan tar files in threads: they wait for storage together, and share one processor.

    Args:
        paths: of the files.
        image: suffixes of the images; none for automatic.
        places: where labels may be.
        progress: called with (bytes passed, bytes of all tars) from time to time.
        whole_names: whether keys go up to the last dot of a name.
    """

    def __init__(
        self,
        paths: Sequence[bytes],
        image: Sequence[bytes],
        places: LabelPlaces,
        progress: Callable[[int, int], None],
        whole_names: bool = False,
    ) -> None:
        self._paths, self._image, self._places, self._progress = paths, image, places, progress
        self._whole_names = whole_names
        self._passed, self._sizes = [0] * len(paths), [0] * len(paths)
        self._stopped = threading.Event()
        self._store = ObjectStore()

    def __iter__(self) -> Iterator[TarSamples]:
        """Yield the samples of each tar, in order. Raises LoaderError of the first tar that has one."""
        are_remote = any(map(is_url, self._paths))
        workers = min(len(self._paths), _REMOTE_WORKERS if are_remote else many_workers(available_cpus()))
        with ThreadPoolExecutor(workers, thread_name_prefix="penstock-tar") as pool:
            try:
                for scanned in [pool.submit(self._scan, number) for number in range(len(self._paths))]:
                    yield self._wait_for(scanned)
            finally:
                self._stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)

    def _wait_for(self, scanned: Future[TarSamples]) -> TarSamples:
        while True:
            with contextlib.suppress(TimeoutError):
                return scanned.result(_LOOK_EVERY_S)
            self._progress(sum(self._passed), sum(self._sizes))

    def _scan(self, number: int) -> TarSamples:
        with open_tar(self._paths[number], self._store) as tar:
            samples, reader = TarSamples(tar.container), TarReader(tar)
            self._sizes[number] = tar.container.size

            def report() -> None:
                self._passed[number] = reader.position
                if self._stopped.is_set():
                    raise _Stopped

            MemberJoin(samples, self._image, self._places, self._whole_names, report).read(reader)
        self._passed[number] = tar.container.size
        if samples.is_empty:
            raise LoaderError("E-NODATA", "the tar holds no file", fix=_FIX_EMPTY, path=tar.container.name)
        return samples
