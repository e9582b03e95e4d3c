"""The size on disk and the images/s of each way to store the data, as stored in a record."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.bench.record.settings import BatchSize, Rounds, Seconds, Seed, Size, Workers, setting

FILES, LOSSLESS = "files", "cache"  # names of two ways to store the data; other caches are named after their options


@dataclass(frozen=True, kw_only=True)
class AdviceSettings:
    """Settings for measuring the ways to store the data."""

    sample: int = setting(200, "Images in the sample, spread over the data.", min=1)
    size: Size = 224
    batch_size: BatchSize = 64
    workers: Workers = None
    seconds: Seconds = 2.0
    rounds: Rounds = 3
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class StorageKind:
    """Hold one way to store the data, measured with the sample.

    Attributes:
        name: FILES, LOSSLESS, or the options of `penstock cache build`.
        whole_bytes: bytes on the disk of the whole data set, extrapolated.
        images_per_s: the median of `rounds`.
        psnr_db: PSNR of a lossy cache against its source, from its build.
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
        """The quality of the served images against the source."""
        return "lossless" if self.lossless else "lossy" if self.psnr_db is None else f"{self.psnr_db:.1f} dB"


@dataclass(frozen=True, kw_only=True)
class CacheAdvice:
    """Hold all measured ways to store the data.

    Attributes:
        data: "sample" is the number of stored images, "summary" describes the whole data.
        workers: worker processes of the measured loaders.
        offers: the ways to store the data, files first.
        notes: what was left out and why.
    """

    settings: AdviceSettings
    data: dict[str, object]
    environment: dict[str, object]
    workers: int
    offers: tuple[StorageKind, ...]
    notes: tuple[str, ...]
