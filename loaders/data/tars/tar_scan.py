"""Scans tars: many at once, in threads that wait for storage."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError

from penstock.loaders.data.remote.object_store import ObjectStore, is_url
from penstock.loaders.data.tars.member_list import ListedReader, UnusableListError, read_list
from penstock.loaders.data.tars.tar_headers import OpenTar, TarReader, open_tar
from penstock.loaders.data.tars.tar_join import MemberJoin, TarSamples
from penstock.loaders.data.tars.tar_labels import LabelPlaces
from penstock.loaders.system.machine import available_cpus, many_workers
from penstock.pipelines.errors import LoaderError

_LOOK_EVERY_S = 0.1
_REMOTE_WORKERS = 64  # they mostly wait for answers
_AHEAD = 32  # finished tars that may wait for an earlier one that takes longer
_OF_CONTENT = ("E-FORMAT", "E-CORRUPT", "E-TRUNC")  # errors that a wrong list of members may cause
_FIX_EMPTY = "copy or write it again, or leave it out of the paths"


class _Stopped(Exception):
    """Raised in a scan that nobody waits for."""


def scan_tars(
    paths: Sequence[bytes],
    image: Sequence[bytes],
    places: LabelPlaces,
    store: ObjectStore,
    progress: Callable[[int, int], None],
    whole_names: bool = False,
    member_list: str | None = None,
) -> Iterator[TarSamples]:
    """Yield the samples of each tar, in order; threads wait for storage in parallel and share one processor.

    Args:
        paths: paths of the files.
        image: suffixes of the images; none for automatic.
        places: where labels may be.
        store: reads tars at URLs.
        progress: called periodically with (bytes scanned, bytes of all tars).
        whole_names: whether keys go up to the last dot of a name.
        member_list: suffix of the lists of members next to the tars; None for none.

    Raises the LoaderError of the first tar that has one.
    """
    passed, sizes, stopped = [0] * len(paths), [0] * len(paths), threading.Event()

    def scan(number: int) -> TarSamples:
        with open_tar(paths[number], store) as tar:
            sizes[number] = tar.container.size

            def join(reader: TarReader) -> TarSamples:
                def report() -> None:
                    passed[number] = reader.position
                    if stopped.is_set():
                        raise _Stopped

                samples = TarSamples(tar.container)
                MemberJoin(samples, image, places, whole_names, report).read(reader)
                return samples

            samples = _join_listed(tar, join, member_list, store)
        passed[number] = tar.container.size
        return samples

    def wait_for(scanned: Future[TarSamples]) -> TarSamples:
        while True:
            with contextlib.suppress(TimeoutError):
                return scanned.result(_LOOK_EVERY_S)
            progress(sum(passed), sum(sizes))

    workers = min(len(paths), _REMOTE_WORKERS if any(map(is_url, paths)) else many_workers(available_cpus()))
    with ThreadPoolExecutor(workers, thread_name_prefix="penstock-tar") as pool:
        try:
            waiting: deque[Future[TarSamples]] = deque()
            for number in range(len(paths)):
                waiting.append(pool.submit(scan, number))
                if len(waiting) >= workers + _AHEAD:
                    yield wait_for(waiting.popleft())
            yield from map(wait_for, waiting)
        finally:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)


def _join_listed(
    tar: OpenTar, join: Callable[[TarReader], TarSamples], member_list: str | None, store: ObjectStore
) -> TarSamples:
    """Return the samples of a tar by the list of its members; without a usable list, by all headers."""
    unused = ""
    if member_list is not None:
        try:
            return join(ListedReader(tar, read_list(tar, member_list, store)))
        except UnusableListError as error:
            unused = str(error)
        except LoaderError as error:
            if error.code not in _OF_CONTENT:
                raise
            unused = error.cause
    samples = join(TarReader(tar))
    if samples.is_empty:
        raise LoaderError("E-NODATA", "the tar contains no file", fix=_FIX_EMPTY, path=tar.container.name)
    samples.unused_list = unused
    return samples
