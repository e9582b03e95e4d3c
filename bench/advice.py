"""What to change, and what that would give by the figures of the run itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from penstock.bench.limits import Figures
from penstock.bench.record import LOSSLESS_CACHE, BenchRecord, decode_ceilings, decode_name

_WORTH = 1.05  # a smaller gain is noise


@dataclass(frozen=True, kw_only=True)
class Advice:
    """what: to change; images_per_s: of the loader then, None where the run's figures do not tell; why: they do."""

    what: str
    images_per_s: float | None
    why: str


def advise(record: BenchRecord, limit: str) -> tuple[Advice, ...]:
    """For the limit that the verdict names, what promises most first; a prediction never passes another ceiling."""
    figures = Figures.of(record)
    made = [advice for offer in _OFFERS[limit] if (advice := offer(record, figures)) is not None]
    known = [a for a in made if a.images_per_s is None or a.images_per_s > _WORTH * figures.loader or limit == "model"]
    return tuple(sorted(known, key=lambda advice: -(advice.images_per_s or 0.0)))


def _capped(figures: Figures, rate: float, *, without: str = "") -> tuple[float, str]:
    """`rate`, or the lowest other ceiling below it, and what that is."""
    ceilings = {"the feed": figures.feed, "reading from storage": figures.storage_cap}
    ceilings.pop(without, None)
    name, lowest = min(((k, v) for k, v in ceilings.items() if v), key=lambda kv: kv[1], default=("", math.inf))
    return (rate, "") if rate <= lowest else (lowest, f"; then {name} limits")


def _decoder(record: BenchRecord, figures: Figures) -> Advice | None:
    mine, others = figures.decode_resize, decode_ceilings(record)
    others.pop(decode_name(record.decoder), None)
    best = max(others, key=lambda name: others[name], default=None)
    if not mine or best is None or others[best] <= _WORTH * mine:
        return None
    rate, then = _capped(figures, figures.loader * others[best] / mine)
    name = best.split(", ")[1]
    why = f"on one thread it decodes and resizes {others[best]:,.0f} images/s, {record.decoder} {mine:,.0f}{then}"
    return Advice(what=f"--decoder {name}", images_per_s=rate, why=why)


def _workers(record: BenchRecord, figures: Figures) -> Advice | None:
    busy = max(1, record.workers)
    if busy >= figures.cpus:
        return None
    rate, then = _capped(figures, figures.loader * figures.cpus / busy)
    why = f"{record.workers} workers of {figures.cpus} processors are used, and decoding scales with them{then}"
    return Advice(what=f"--workers {figures.cpus}", images_per_s=rate, why=why)


def _cache(record: BenchRecord, figures: Figures) -> Advice | None:
    mine, cached = figures.decode_resize, record.rate("ceiling", LOSSLESS_CACHE)
    if not mine or not cached:
        return None
    rate, then = _capped(figures, figures.loader * cached / mine)
    why = f"of a sample's lossless cache one thread decodes {cached:,.0f} crops/s, of the files {mine:,.0f}{then}"
    return Advice(what="a lossless cache (--backend hdf5 --cache DATA.h5)", images_per_s=rate, why=why)


def _processors(record: BenchRecord, figures: Figures) -> Advice | None:
    used = figures.processors_used
    rate, then = _capped(figures, figures.loader * (used + 1) / used)
    return Advice(
        what="another processor for the loader",
        images_per_s=rate,
        why=f"images/s follow the processors, {used} here{then}",
    )


def _uint8(record: BenchRecord, figures: Figures) -> Advice | None:
    if record.settings.dtype == "uint8":
        return None
    ceiling = figures.decode_ceiling
    others = [rate for rate in (figures.copy, ceiling) if rate]
    told = f"copying alone does {figures.copy:,.0f} images/s" if figures.copy else "uint8 is handed out as it is"
    what = "--dtype uint8, and normalise on the device as part of the model"
    # Beside a model it is the model's work that changes, and the run tells nothing of that.
    return Advice(what=what, images_per_s=None if figures.both else min(others, default=None), why=told)


def _enough(record: BenchRecord, figures: Figures) -> Advice | None:
    if not figures.model or record.workers < 2:
        return None
    enough = max(1, math.ceil(1.25 * record.workers * figures.model / figures.loader))
    if enough >= record.workers:
        return None
    rate = figures.loader * enough / record.workers
    why = f"so many feed a model of {figures.model:,.0f} images/s with a quarter to spare; the rest is free for others"
    return Advice(what=f"--workers {enough}", images_per_s=rate, why=why)


def _model(record: BenchRecord, figures: Figures) -> Advice | None:
    amp = "" if record.settings.amp != "off" or record.settings.device == "cpu" else ", or --amp bf16"
    room = f"the loader could feed {figures.loader:,.0f} images/s"
    return Advice(what=f"a faster device or a smaller model{amp}", images_per_s=None, why=room)


def _memory(record: BenchRecord, figures: Figures) -> Advice | None:
    if not figures.decode_ceiling:
        return None
    rate, then = _capped(figures, figures.decode_ceiling, without="reading from storage")
    why = f"from the page cache nothing but decoding is left{then}"
    return Advice(what="faster storage, or enough memory for the data to stay in", images_per_s=rate, why=why)


def _others_programs(record: BenchRecord, figures: Figures) -> Advice | None:
    share = figures.others_share
    if not share or share < 0.1 or not figures.cpu_share:
        return None
    rate, then = _capped(figures, min(figures.loader * (1 + share / figures.cpu_share), figures.decode_ceiling or 1e12))
    return Advice(
        what="stop the other programs on this machine",
        images_per_s=rate,
        why=f"they take {share:.0%} of its processors{then}",
    )


def _model_apart(record: BenchRecord, figures: Figures) -> Advice | None:
    if figures.both is None:
        return None
    return Advice(
        what="a processor of its own for the training process (fewer --workers), or more processors",
        images_per_s=None,
        why="loader and model share them, and each is faster alone",
    )


_Offer = Callable[[BenchRecord, Figures], "Advice | None"]
_DECODING: tuple[_Offer, ...] = (_workers, _cache, _decoder, _processors, _others_programs)
_OFFERS: dict[str, tuple[_Offer, ...]] = {
    "model": (_enough, _model),
    "decode": _DECODING,
    "resize": (_workers, _processors, _others_programs),
    "cpu": (_others_programs, _cache, _decoder, _model_apart),
    "storage": (_memory,),
    "transfer": (_uint8,),
    "consumer": (_uint8,),
    "loader": (_workers, _others_programs, _cache),
}
