"""The figures of a record that verdict and advice are derived from."""

from __future__ import annotations

from penstock.bench.record.bench_record import (
    COPY,
    COPY_AND_NORMALISE,
    DECODE,
    NORMALISE,
    READ_COLD,
    READ_MANY,
    REPLAYED,
    RESIZE,
    BenchRecord,
    bf16_name,
    decode_name,
    fetch_name,
    replayed_model_name,
)
from penstock.loaders.system.machine import many_workers

CLOSE = 0.9  # a rate within this share of a ceiling is limited by it
SCALES = 1.2  # storage that is this many times faster than the loader reads can serve more concurrent reads
_MOSTLY = 0.5  # share of bytes, or of a worker's time, that counts as most of it
_IDLE = 0.75  # workers that are busy for less of their time wait for the consuming process


class Figures:
    """The figures of a run that its verdict is derived from; rates are images/s, None was not measured."""

    def __init__(self, record: BenchRecord) -> None:
        loader, both = record.find("loader"), record.find("both")
        alone, together = (m.resources if m else None for m in (loader, both))
        store, size = record.store, record.data.get("bytes_an_image")
        bytes_an_image = size if isinstance(size, int) else 0

        def ceiling(name: str) -> float | None:
            return record.rate("ceiling", name) or None

        self.loader = loader.images_per_s if loader else 0.0
        self.model = record.rate("model")
        self.both = both.images_per_s if both else None
        # One thread alone; then many concurrent reader threads.
        self.decode_resize = ceiling(decode_name(record.decoder))
        self.decode, self.resize, self.read_cold = ceiling(DECODE), ceiling(RESIZE), ceiling(READ_COLD)
        self.read_many = ceiling(READ_MANY)
        # Remote storage, with the loader's number of requests and with more of them.
        self.store = store
        self.fetched = ceiling(fetch_name(store.requests)) if store else None
        self.fetched_more = ceiling(fetch_name(store.more_requests)) if store and store.more_requests else None
        # The copy to the device, and copy and batch stage together.
        self.copy, self.transfer = ceiling(COPY), ceiling(COPY_AND_NORMALISE) or ceiling(NORMALISE)
        # Batches from memory instead of the loader: alone, and with the model.
        self.replayed = ceiling(REPLAYED)
        self.replayed_model = ceiling(replayed_model_name(str(record.settings.model)))
        self.model_bf16 = ceiling(bf16_name(str(record.settings.model)))
        self.workers, self.cpus = record.workers, int(str(record.environment["cpus"]))
        # Shares of the processors that loader, loader + model, and other programs keep busy.
        self.cpu_share = alone.cpu_share if alone else None
        self.both_cpu_share = together.cpu_share if together else None
        self.others_share = alone.others_share if alone else None
        # Share of the loader's bytes that came from storage, not from the page cache.
        read, needed = alone.storage_mb_s if alone else None, self.loader * bytes_an_image
        self.storage_share = read * 1e6 / needed if read is not None and needed else None
        # Images/s that came over the network while the loader was measured.
        traffic = loader.traffic if loader else None
        self.arriving = traffic.bytes_per_s / bytes_an_image if traffic and bytes_an_image else None
        # Share of a step of loader + model that waits for data; how the loader's workers spent their time.
        self.wait_share = both.wait_share if both else None
        self.time = loader.workers if loader else None

    @property
    def processors_used(self) -> int:
        """Number of processors that the loader's workers can use at once."""
        return max(1, min(self.workers or 1, self.cpus))

    @property
    def decode_ceiling(self) -> float:
        """Images/s of decode and resize on one thread, times the processors that the workers can use."""
        return (self.decode_resize or 0.0) * self.processors_used

    @property
    def feed(self) -> float | None:
        """The lowest ceiling between worker and model."""
        return min((rate for rate in (self.transfer, self.replayed) if rate), default=None)

    @property
    def from_storage(self) -> bool:
        """Whether most of the loader's bytes came from storage."""
        return self.storage_share is not None and self.storage_share >= _MOSTLY

    @property
    def from_network(self) -> bool:
        """Whether most of the remote samples came over the network during the run, not from memory or a copy."""
        share = self.store.share if self.store else 1.0
        return self.arriving is not None and self.arriving >= _MOSTLY * self.loader * share

    @property
    def waits_for_network(self) -> bool:
        """Whether the network limits: the loader is as fast as fetching alone, or its workers wait for data."""
        if not self.fetched or self.store is None or not self.from_network:
            return False
        if self.feed and self.feed < self.fetched and self.loader >= CLOSE * self.feed:
            return False
        return self.loader >= CLOSE * self.fetched or self.waits_for_reads

    @property
    def waits_for_answers(self) -> bool:
        """Whether more concurrent requests would fetch more: latency limits, not bandwidth."""
        if self.store is None or not self.fetched:
            return False
        if self.loader < CLOSE * self.fetched:
            return True
        return self.store.gains_by_more if self.fetched_more else not self.store.is_queueing

    @property
    def storage_reads(self) -> float | None:
        """Images/s that all workers could read from storage if each reads as fast as one alone."""
        return self.read_cold * max(1, self.workers) if self.read_cold else None

    @property
    def storage_cap(self) -> float | None:
        """Images/s that all workers could read from storage, if this run read from it; else None."""
        return self.storage_reads if self.from_storage else None

    @property
    def waits_for_reads(self) -> bool:
        """Whether the workers spend most of their time waiting for reads.

        A long read is not always a wait: on busy processors its thread may be descheduled. It counts as waiting if it
        takes longer than all the processor time of an image, or twice that where all processors are busy.
        """
        time, cpu_s = self.time, self.cpu_s
        if time is None or cpu_s is None or time.busy < _IDLE or time.read_share < _MOSTLY:
            return False
        return time.read_s > (2 if self.busy >= CLOSE else 1) * cpu_s

    @property
    def decodes_all_the_time(self) -> bool:
        """Whether the workers never wait and spend most of their time on decoding and resizing."""
        busy = self.time is not None and self.time.busy >= CLOSE
        return busy and self.loader >= _MOSTLY * self.decode_ceiling > 0

    @property
    def workers_wait(self) -> bool:
        """Whether the workers often wait for the consuming process with batches ready."""
        return self.time is not None and self.time.busy < _IDLE and self.time.queue_depth >= 1

    @property
    def cpu_s(self) -> float | None:
        """Seconds of processor time that an image takes, in workers and consumer together."""
        return self.cpu_share * self.cpus / self.loader if self.cpu_share and self.loader else None

    @property
    def both_cpu_s(self) -> float | None:
        """Seconds of processor time that an image takes in loader + model."""
        return self.both_cpu_share * self.cpus / self.both if self.both_cpu_share and self.both else None

    @property
    def trains_on_shared_processors(self) -> bool:
        """Whether the model is slower than the loader and both together kept the processors busy."""
        sharing = self.model is not None and self.loader >= self.model and self.both_cpu_share is not None
        return sharing and (self.both_cpu_share or 0.0) + (self.others_share or 0.0) >= CLOSE

    @property
    def worth_reading(self) -> int:
        """Largest useful number of workers if they wait for storage."""
        return many_workers(self.cpus)

    @property
    def busy(self) -> float:
        """Share of the processors that the loader and other programs kept busy."""
        return (self.cpu_share or 0.0) + (self.others_share or 0.0)

    @property
    def resize_costs_more(self) -> bool:
        """Whether an image takes longer to resize than to decode."""
        return bool(self.resize and self.decode and self.resize < self.decode)
