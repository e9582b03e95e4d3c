"""The figures of a record that its verdict and its advice follow from."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.bench.measure.network_time import StoreTime
from penstock.bench.measure.worker_time import WorkerTime
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
SCALES = 1.2  # storage that gives so many times what the loader reads serves more reads at once
_MOSTLY = 0.5  # share of bytes, or of a worker's time, that counts as most of them
_IDLE = 0.75  # workers that are busy for a smaller share of their time wait for the consuming process


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Hold a run's figures; rates are images/s, None is what was not measured.

    Attributes:
        model, both: rate of the model alone, and of loader + model.
        decode_resize, decode, resize, read_cold: ceilings of one thread.
        read_many: ceiling of many threads that read at once.
        fetched, fetched_more: ceilings of remote storage, with the loader's number of requests and with more of them.
        copy, transfer: ceilings of the copy to the device, and of copy and batch stage together.
        replayed, replayed_model: ceilings of batches from memory: the loader removed, and the model on such batches.
        model_bf16: ceiling of the model in mixed precision.
        cpus: processors of the machine.
        cpu_share, both_cpu_share: share of the processors that the loader, and loader + model, keep busy.
        others_share: share of the processors that other programs keep busy.
        storage_share: share of the loader's bytes that came from storage, not from the page cache.
        arriving: images/s that came over the network while the loader was measured.
        store: what remote storage gives; None for data on this machine.
        wait_share: share of a step of loader + model that waits for data.
        time: what the loader's workers did with their time.
    """

    loader: float
    model: float | None
    both: float | None
    decode_resize: float | None
    decode: float | None
    resize: float | None
    read_cold: float | None
    read_many: float | None
    fetched: float | None
    fetched_more: float | None
    copy: float | None
    transfer: float | None
    replayed: float | None
    replayed_model: float | None
    model_bf16: float | None
    workers: int
    cpus: int
    cpu_share: float | None
    both_cpu_share: float | None
    others_share: float | None
    storage_share: float | None
    arriving: float | None
    store: StoreTime | None
    wait_share: float | None
    time: WorkerTime | None

    @classmethod
    def of(cls, record: BenchRecord) -> Figures:
        """Return the figures of a record."""
        loader, both = record.find("loader"), record.find("both")
        alone, together = (m.resources if m else None for m in (loader, both))

        def ceiling(name: str) -> float | None:
            return record.rate("ceiling", name) or None

        rate, size = loader.images_per_s if loader else 0.0, record.data.get("bytes_an_image")
        read = alone.storage_mb_s if alone else None
        share = arriving = None
        if read is not None and isinstance(size, int) and size and rate:
            share = read * 1e6 / (rate * size)
        if loader and loader.traffic and isinstance(size, int) and size:
            arriving = loader.traffic.bytes_per_s / size
        store = record.store
        return cls(
            loader=rate,
            model=record.rate("model"),
            both=both.images_per_s if both else None,
            decode_resize=ceiling(decode_name(record.decoder)),
            decode=ceiling(DECODE),
            resize=ceiling(RESIZE),
            read_cold=ceiling(READ_COLD),
            read_many=ceiling(READ_MANY),
            fetched=ceiling(fetch_name(store.requests)) if store else None,
            fetched_more=ceiling(fetch_name(store.more_requests)) if store and store.more_requests else None,
            copy=ceiling(COPY),
            transfer=ceiling(COPY_AND_NORMALISE) or ceiling(NORMALISE),
            replayed=ceiling(REPLAYED),
            replayed_model=ceiling(replayed_model_name(str(record.settings.model))),
            model_bf16=ceiling(bf16_name(str(record.settings.model))),
            workers=record.workers,
            cpus=int(str(record.environment["cpus"])),
            cpu_share=alone.cpu_share if alone else None,
            both_cpu_share=together.cpu_share if together else None,
            others_share=alone.others_share if alone else None,
            storage_share=share,
            arriving=arriving,
            store=store,
            wait_share=both.wait_share if both else None,
            time=loader.workers if loader else None,
        )

    @property
    def processors_used(self) -> int:
        """Number of processors that the loader's workers can be on at once."""
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
        """Whether most of what the loader read came from storage."""
        return self.storage_share is not None and self.storage_share >= _MOSTLY

    @property
    def from_network(self) -> bool:
        """Whether most of what the loader delivered came over the network meanwhile, not from memory or a copy."""
        return self.arriving is not None and self.arriving >= _MOSTLY * self.loader

    @property
    def waits_for_network(self) -> bool:
        """Whether the network limits: the loader is as fast as fetching alone, or its workers wait for what comes."""
        if not self.fetched or self.store is None or not self.from_network:
            return False
        if self.feed and self.feed < self.fetched and self.loader >= CLOSE * self.feed:
            return False
        return self.loader >= CLOSE * self.fetched or self.waits_for_reads

    @property
    def waits_for_answers(self) -> bool:
        """Whether more requests under way would bring more: the distance limits, not the bandwidth."""
        if self.store is None or not self.fetched:
            return False
        if self.loader < CLOSE * self.fetched:
            return True
        return self.store.gains_by_more if self.fetched_more else not self.store.is_queueing

    @property
    def storage_reads(self) -> float | None:
        """Images/s that all workers could read from storage, if it serves each of them as it serves one."""
        return self.read_cold * max(1, self.workers) if self.read_cold else None

    @property
    def storage_cap(self) -> float | None:
        """Images/s that all workers could read from storage, where this run read from it."""
        return self.storage_reads if self.from_storage else None

    @property
    def waits_for_reads(self) -> bool:
        """Whether the workers spend most of their time waiting for reads.

        A long read is not always a wait: on busy processors it may just be descheduled. It counts as waiting if it
        takes longer than all the processor time of an image, or twice that where all processors are busy.
        """
        time, cpu_s = self.time, self.cpu_s
        if time is None or cpu_s is None or time.busy < _IDLE or time.read_share < _MOSTLY:
            return False
        return time.read_s > (2 if self.busy >= CLOSE else 1) * cpu_s

    @property
    def decodes_all_the_time(self) -> bool:
        """Whether the workers never wait, and spend most of their time on decoding and resizing."""
        busy = self.time is not None and self.time.busy >= CLOSE
        return busy and self.loader >= _MOSTLY * self.decode_ceiling > 0

    @property
    def workers_wait(self) -> bool:
        """Whether the workers often wait, with batches done, for the consuming process."""
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
        """Whether a model that is slower than the loader kept the processors busy together with it."""
        sharing = self.model is not None and self.loader >= self.model and self.both_cpu_share is not None
        return sharing and (self.both_cpu_share or 0.0) + (self.others_share or 0.0) >= CLOSE

    @property
    def worth_reading(self) -> int:
        """Number of workers that is worth having where they wait for storage."""
        return many_workers(self.cpus)

    @property
    def busy(self) -> float:
        """Share of the processors that the loader and other programs kept busy."""
        return (self.cpu_share or 0.0) + (self.others_share or 0.0)

    @property
    def resize_costs_more(self) -> bool:
        """Whether an image takes longer to resize than to decode."""
        return bool(self.resize and self.decode and self.resize < self.decode)
