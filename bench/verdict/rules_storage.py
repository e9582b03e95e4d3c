"""Advice where storage limits: more reads at once, or fewer of its bytes."""

from __future__ import annotations

import math

from penstock.bench.record.record import LOSSLESS_CACHE, BenchRecord
from penstock.bench.verdict.advice import Advice, Change, capped, lowest
from penstock.bench.verdict.figures import SCALES, Figures

_SPARE = 1.1  # more workers than needed, as their reads do not take turns evenly


def more_readers(record: BenchRecord, figures: Figures) -> Advice | None:
    """More workers, where each waits for its own read: until reads at once, processors or the feed are used up."""
    time, many, now = figures.time, figures.read_many, max(1, record.workers)
    if time is None or figures.cpu_s is None or not many or many <= SCALES * figures.loader:
        return None
    ceilings = {
        "reading with many threads": many,
        "the processors": figures.cpus / figures.cpu_s,
        "the feed": figures.feed,
    }
    wanted = math.ceil(_SPARE * now * min(rate for rate in ceilings.values() if rate) / figures.loader)
    workers = min(figures.worth_reading, wanted)
    if workers <= now:
        return None
    rate, then = lowest(figures.loader * workers / now, ceilings)
    why = (
        f"an image keeps a worker waiting {1e3 * time.read_s:,.1f} ms for its bytes and busy "
        f"{1e3 * (time.worker_s - time.read_s):,.1f} ms with them; many threads at once read {many:,.0f} images/s{then}"
    )
    return Advice(what=f"--workers {workers}", images_per_s=rate, why=why, change=Change(workers=workers))


def local_cache(record: BenchRecord, figures: Figures) -> Advice | None:
    """A copy where reading costs next to nothing. On the disk that limits already it would have to be elsewhere."""
    cached, mine, time = record.rate("ceiling", LOSSLESS_CACHE), figures.decode_resize, figures.time
    if not cached or not mine or time is None or figures.cpu_s is None:
        return None
    # What is left of an image's time without its reads, decoding the crops of the cache instead of whole files.
    of_worker = max(0.0, time.worker_s - time.read_s - 1 / mine) + 1 / cached
    of_all = max(0.0, figures.cpu_s - 1 / mine) + 1 / cached
    ceilings = {"the processors": figures.cpus / of_all, "the feed": figures.feed}
    rate, then = lowest(max(1, record.workers) / of_worker, ceilings)
    why = f"without the wait for reads a worker needs {1e3 * of_worker:,.1f} ms an image, while it is in memory{then}"
    return Advice(
        what="a lossless cache on a fast disk of this machine (--backend hdf5 --cache LOCAL.h5)",
        images_per_s=rate,
        why=why,
        change=None if figures.from_storage else Change(cache="lossless"),
    )


def memory(record: BenchRecord, figures: Figures) -> Advice | None:
    """Storage that keeps up."""
    if not figures.decode_ceiling:
        return None
    rate, then = capped(figures, figures.decode_ceiling, without="reading from storage")
    why = f"from the page cache nothing but decoding is left{then}"
    return Advice(what="faster storage, or enough memory for the data to stay in", images_per_s=rate, why=why)
