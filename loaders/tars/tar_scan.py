"""Scans tar files for samples, several at a time."""

from __future__ import annotations

import contextlib
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from dataclasses import dataclass, field

from penstock.loaders.remote.object_store import ObjectStore, is_url
from penstock.loaders.sources.range_index import Container
from penstock.loaders.system.machine import available_cpus, many_workers
from penstock.loaders.tars.tar_headers import TarReader, open_tar
from penstock.loaders.tars.tar_labels import LabelMember, NamedMembers
from penstock.loaders.tars.tar_samples import Sample, choose_image, count_images, group_members
from penstock.pipelines.errors import LoaderError

NO_IMAGE, OTHER_IMAGE, NO_SAMPLES = "sample without an image", "other image of a sample", "tar without samples"
_LOOK_EVERY_S = 0.1
_REMOTE_WORKERS = 64  # which mostly wait for answers
_REPORT_INTERVAL = 1024  # samples
_FIX_LABEL = "repair the sample, or pass label='folder', or a table of keys and labels"


@dataclass
class TarSamples:
    """Hold the samples of one tar, in the order of its members.

    Attributes:
        container: the file.
        names: of the members that are the images.
        starts, sizes: of these, bytes.
        labels: label of each sample as text; empty unless a member holds it.
        label_member: the member that does; None if none does.
        skipped: reason -> number of entries that were skipped.
    """

    container: Container
    names: list[bytes] = field(default_factory=list)
    starts: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    labels: list[bytes] = field(default_factory=list)
    label_member: LabelMember | NamedMembers | None = None
    skipped: Counter[str] = field(default_factory=Counter)


class TarScan:
    """Scan tar files in threads: they wait for storage together, and share one processor.

    Args:
        paths: of the files.
        image: suffixes of the images; none for automatic.
        label_members: members that may hold the labels: the first that the first sample of a tar has, all have.
        progress: called with (bytes passed, bytes of all tars) from time to time.
    """

    def __init__(
        self,
        paths: Sequence[bytes],
        image: Sequence[bytes],
        label_members: Sequence[LabelMember | NamedMembers],
        progress: Callable[[int, int], None],
    ) -> None:
        self._paths, self._image, self._label_members, self._progress = paths, image, label_members, progress
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
            samples = TarSamples(tar.container)
            self._sizes[number] = tar.container.size
            self._read(number, TarReader(tar), samples)
        return samples

    def _read(self, number: int, reader: TarReader, samples: TarSamples) -> None:
        skipped = samples.skipped
        for _, sample in group_members(reader):
            image = choose_image(sample, self._image)
            if image is None:
                skipped[NO_IMAGE] += 1
                continue
            if len(sample) > 1:
                skipped[OTHER_IMAGE] += count_images(sample) - 1
            if not samples.names:
                samples.label_member = self._choose_label_member(reader, sample)
            if samples.label_member is not None:
                try:
                    samples.labels.append(samples.label_member.read(reader, sample))
                except ValueError as error:
                    where = reader.path + b":" + image.name
                    raise LoaderError("E-FORMAT", str(error), fix=_FIX_LABEL, path=where) from None
            samples.names.append(image.name)
            samples.starts.append(image.start)
            samples.sizes.append(image.size)
            if len(samples.names) % _REPORT_INTERVAL == 0:
                self._passed[number] = reader.position
                if self._stopped.is_set():
                    return
        self._passed[number] = reader.size
        skipped += reader.skipped
        skipped[NO_SAMPLES] += not samples.names

    def _choose_label_member(self, reader: TarReader, sample: Sample) -> LabelMember | NamedMembers | None:
        """Return the first of the members that holds a label; the only one whatever it holds."""
        for member in self._label_members:
            if len(self._label_members) == 1:
                return member
            with contextlib.suppress(ValueError):
                member.read(reader, sample)
                return member
        return None
