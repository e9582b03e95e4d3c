"""The figures of a record by which its limits are told, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.bench.measure.worker_time import WorkerTime
from penstock.bench.record.record import (
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
    replayed_model_name,
)
from penstock.loaders.system.machine import many_workers

CLOSE = 0.9  # a rate within this share of a ceiling is limited by it
SCALES = 1.2  # so many times what the loader reads, or more, is more than noise
_MOSTLY = 0.5  # of the bytes, of a worker's time
_IDLE = 0.75  # workers busy for a smaller share of their time wait for what comes after them


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Images/s, of the loader, of the model, and of the ceilings; None for what was not measured.

    decode_resize, decode, resize, read_cold: of one thread; read_many: of many. transfer: copy and batch stage; copy:
    the first alone; replayed: the loader removed; replayed_model: the model on such batches; model_bf16: the model in
    mixed precision. cpus: of the machine. cpu_share, both_cpu_share: of the processors that the loader, and loader and
    model, keep busy; others_share: other programs. storage_share: of the loader's bytes that came from storage, not
    from the page cache. wait_share: of a step of loader + model. time: of the loader's workers.
    """

    loader: float
    model: float | None
    both: float | None
    decode_resize: float | None
    decode: float | None
    resize: float | None
    read_cold: float | None
    read_many: float | None
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
    wait_share: float | None
    time: WorkerTime | None

    @classmethod
    def of(cls, record: BenchRecord) -> Figures:
        """Those of a record."""
        loader, both = record.find("loader"), record.find("both")
        alone, together = (m.resources if m else None for m in (loader, both))

        def ceiling(name: str) -> float | None:
            return record.rate("ceiling", name) or None

        rate, size = loader.images_per_s if loader else 0.0, record.data.get("bytes_an_image")
        read = alone.storage_mb_s if alone else None
        share = None
        if read is not None and isinstance(size, int) and size and rate:
            share = read * 1e6 / (rate * size)
        return cls(
            loader=rate,
            model=record.rate("model"),
            both=both.images_per_s if both else None,
            decode_resize=ceiling(decode_name(record.decoder)),
            decode=ceiling(DECODE),
            resize=ceiling(RESIZE),
            read_cold=ceiling(READ_COLD),
            read_many=ceiling(READ_MANY),
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
            wait_share=both.wait_share if both else None,
            time=loader.workers if loader else None,
        )

    @property
    def processors_used(self) -> int:
        """Processors that the loader's workers can be on at once."""
        return max(1, min(self.workers or 1, self.cpus))

    @property
    def decode_ceiling(self) -> float:
        """Images/s of decode and resize on one thread, times the processors that its workers can use."""
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
    def storage_reads(self) -> float | None:
        """Images/s that all workers could read from storage, if it serves each of them as it serves one."""
        return self.read_cold * max(1, self.workers) if self.read_cold else None

    @property
    def storage_cap(self) -> float | None:
        """The same where this run read from storage."""
        return self.storage_reads if self.from_storage else None

    @property
    def waits_for_reads(self) -> bool:
        """Whether the workers spend most of their time inside the source, and not at work there.

        However long a read takes on busy processors, it is work unless it is longer than all the processor time that an
        image takes, and that by far where processors are what everything waits for.
        """
        time, cpu_s = self.time, self.cpu_s
        if time is None or cpu_s is None or time.busy < _IDLE or time.read_share < _MOSTLY:
            return False
        return time.read_s > (2 if self.busy >= CLOSE else 1) * cpu_s

    @property
    def decodes_all_the_time(self) -> bool:
        """Whether the workers never wait, and decode and resize for most of their time; the rest goes with it."""
        busy = self.time is not None and self.time.busy >= CLOSE
        return busy and self.loader >= _MOSTLY * self.decode_ceiling > 0

    @property
    def workers_wait(self) -> bool:
        """Whether the workers often wait, with batches done, for whoever takes them."""
        return self.time is not None and self.time.busy < _IDLE and self.time.queue_depth >= 1

    @property
    def cpu_s(self) -> float | None:
        """Seconds of processor time that an image takes, in workers and consumer together."""
        return self.cpu_share * self.cpus / self.loader if self.cpu_share and self.loader else None

    @property
    def both_cpu_s(self) -> float | None:
        """The same of loader + model."""
        return self.both_cpu_share * self.cpus / self.both if self.both_cpu_share and self.both else None

    @property
    def trains_on_shared_processors(self) -> bool:
        """Whether a model that is slower than the loader kept the processors busy together with it."""
        sharing = self.model is not None and self.loader >= self.model and self.both_cpu_share is not None
        return sharing and (self.both_cpu_share or 0.0) + (self.others_share or 0.0) >= CLOSE

    @property
    def worth_reading(self) -> int:
        """As many workers as it pays to have where they wait for storage."""
        return many_workers(self.cpus)

    @property
    def busy(self) -> float:
        """Share of the processors that the loader and other programs kept busy."""
        return (self.cpu_share or 0.0) + (self.others_share or 0.0)

    @property
    def resize_costs_more(self) -> bool:
        """Whether an image takes longer to resize than to decode."""
        return bool(self.resize and self.decode and self.resize < self.decode)
