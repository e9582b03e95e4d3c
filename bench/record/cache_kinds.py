"""What each kind of cache takes on the disk and gives in images/s, as a record holds it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

FILES, LOSSLESS = "files", "cache"  # what these rows are called; other caches are called by their options


@dataclass(frozen=True, kw_only=True)
class AdviceSettings:
    """What to measure: sample: images; seconds: of each measurement in each round."""

    sample: int = 200
    size: int = 224
    batch_size: int = 64
    workers: int | None = None
    seconds: float = 2.0
    rounds: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.seconds <= 0 or min(self.rounds, self.sample, self.size, self.batch_size) < 1:
            raise ValueError("seconds is above 0; rounds, sample, size and batch_size are at least 1")


@dataclass(frozen=True, kw_only=True)
class Offer:
    """One way to store the data, measured on the sample: images/s is the median of `rounds`.

    name: FILES, LOSSLESS, or the options of `penstock cache build`. whole_bytes: on the disk, of the whole data set,
    extrapolated. psnr_db: of a lossy cache against the source, as its build reports it.
    """

    name: str
    lossless: bool
    bytes_an_image: float
    whole_bytes: float
    images_per_s: float
    rounds: tuple[float, ...]
    psnr_db: float | None


@dataclass(frozen=True, kw_only=True)
class CacheAdvice:
    """Every offer, the files first; notes: what was left out, and why."""

    settings: AdviceSettings
    data: dict[str, object]
    environment: dict[str, object]
    workers: int
    offers: tuple[Offer, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """JSON-serialisable."""
        return asdict(self)
