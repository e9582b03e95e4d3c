"""What each way to store the data takes on the disk and gives in images/s, as a record holds it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.bench.record.settings import BatchSize, Rounds, Seconds, Seed, Size, Workers, setting

FILES, LOSSLESS = "files", "cache"  # names of two ways to store the data; other caches have their options as names


@dataclass(frozen=True, kw_only=True)
class AdviceSettings:
    """Say how to measure the ways to store the data."""

    sample: int = setting(200, "Images to try it with, spread over the data.", min=1)
    size: Size = 224
    batch_size: BatchSize = 64
    workers: Workers = None
    seconds: Seconds = 2.0
    rounds: Rounds = 3
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class StorageKind:
    """Hold one way to store the data, measured on the sample.

    Attributes:
        name: FILES, LOSSLESS, or the options of `penstock cache build`.
        whole_bytes: bytes on the disk of the whole data set, extrapolated.
        images_per_s: the median of `rounds`.
        psnr_db: of a lossy cache against its source, as its build reports it.
    """

    name: str
    lossless: bool
    bytes_an_image: float
    whole_bytes: float
    images_per_s: float
    rounds: tuple[float, ...]
    psnr_db: float | None

    @property
    def quality(self) -> str:
        """How near what is served is to the source."""
        return "lossless" if self.lossless else "lossy" if self.psnr_db is None else f"{self.psnr_db:.1f} dB"


@dataclass(frozen=True, kw_only=True)
class CacheAdvice:
    """Hold every way to store the data that was measured.

    Attributes:
        data: what was stored; "sample" is its number of images, "summary" the whole data in words.
        workers: worker processes of the loaders that were measured.
        offers: the ways to store the data, the files first.
        notes: what was left out, and why.
    """

    settings: AdviceSettings
    data: dict[str, object]
    environment: dict[str, object]
    workers: int
    offers: tuple[StorageKind, ...]
    notes: tuple[str, ...]
