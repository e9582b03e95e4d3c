"""The figures of a record by which its limits are told, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.bench.record import (
    COPY,
    COPY_AND_NORMALISE,
    DECODE,
    NORMALISE,
    READ_COLD,
    REPLAYED,
    RESIZE,
    BenchRecord,
    decode_name,
    replayed_model_name,
)

CLOSE = 0.9  # a rate within this share of a ceiling is limited by it
_MOSTLY = 0.5  # of the bytes


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Images/s, of the loader, of the model, and of the ceilings; None for what was not measured.

    decode_resize, decode, resize, read_cold: of one thread. transfer: copy and batch stage; copy: the first alone;
    replayed: the loader removed; replayed_model: the model on such batches. cpus: of the machine. cpu_share,
    both_cpu_share: of the processors that the loader, and loader and model, keep busy; others_share: other programs.
    storage_share: of the loader's bytes that came from storage, not from the page cache.
    """

    loader: float
    model: float | None
    both: float | None
    decode_resize: float | None
    decode: float | None
    resize: float | None
    read_cold: float | None
    copy: float | None
    transfer: float | None
    replayed: float | None
    replayed_model: float | None
    workers: int
    cpus: int
    cpu_share: float | None
    both_cpu_share: float | None
    others_share: float | None
    storage_share: float | None

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
            copy=ceiling(COPY),
            transfer=ceiling(COPY_AND_NORMALISE) or ceiling(NORMALISE),
            replayed=ceiling(REPLAYED),
            replayed_model=ceiling(replayed_model_name(str(record.settings.model))),
            workers=record.workers,
            cpus=int(str(record.environment["cpus"])),
            cpu_share=alone.cpu_share if alone else None,
            both_cpu_share=together.cpu_share if together else None,
            others_share=alone.others_share if alone else None,
            storage_share=share,
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
    def busy(self) -> float:
        """Share of the processors that the loader and other programs kept busy."""
        return (self.cpu_share or 0.0) + (self.others_share or 0.0)

    @property
    def resize_costs_more(self) -> bool:
        """Whether an image takes longer to resize than to decode."""
        return bool(self.resize and self.decode and self.resize < self.decode)
