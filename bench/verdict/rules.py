"""The advice that each limit has, and its choice: what promises most first."""

from __future__ import annotations

from penstock.bench.record.record import LOSSLESS_CACHE, BenchRecord, decode_ceilings, decode_name
from penstock.bench.verdict.advice import LOADER, WORTH, Advice, Change, Offer, capped, cheaper, lowest, present
from penstock.bench.verdict.figures import Figures
from penstock.bench.verdict.rules_storage import local_cache, memory, more_readers
from penstock.bench.verdict.rules_training import bf16, cheaper_loading, enough, faster_device, processor_apart


def advise(record: BenchRecord, limit: str) -> tuple[Advice, ...]:
    """For the limit that the verdict names, the greatest gain first; a prediction never passes another ceiling."""
    figures = Figures.of(record)
    gains: list[tuple[float, Advice]] = []
    for offer in _OFFERS[limit]:
        advice = offer(record, figures)
        if advice is None:
            continue
        now = present(figures, advice.quantity)
        gain = advice.images_per_s / now if advice.images_per_s is not None and now else None
        # Beside a model that limits, advice on the loader alone is to free what is not needed.
        if gain is None or gain > WORTH or (limit == "model" and advice.quantity == LOADER):
            gains.append((gain or 0.0, advice))
    return tuple(advice for _, advice in sorted(gains, key=lambda entry: -entry[0]))


def _decoder(record: BenchRecord, figures: Figures) -> Advice | None:
    mine, others = figures.decode_resize, decode_ceilings(record)
    others.pop(decode_name(record.decoder), None)
    best = max(others, key=lambda name: others[name], default=None)
    if not mine or best is None or others[best] <= WORTH * mine:
        return None
    name = best.split(", ")[1]
    if any((tried.backend, tried.decoder) == (record.loader.get("backend"), name) for tried in record.candidates):
        return None  # the search has seen it beside this one
    why = f"on one thread it decodes and resizes {others[best]:,.0f} images/s, {record.decoder} {mine:,.0f}"
    return _decoding(figures, others[best], f"--decoder {name}", why, Change(decoder=name))


def _cache(record: BenchRecord, figures: Figures) -> Advice | None:
    mine, cached = figures.decode_resize, record.rate("ceiling", LOSSLESS_CACHE)
    if not mine or not cached:
        return None
    why = f"of a sample's lossless cache one thread decodes {cached:,.0f} crops/s, of the files {mine:,.0f}"
    what = "a lossless cache (--backend hdf5 --cache DATA.h5)"
    return _decoding(figures, cached, what, why, Change(cache="lossless"))


def _decoding(figures: Figures, faster: float, what: str, why: str, change: Change) -> Advice | None:
    """Of what decodes and resizes `faster` images/s on one thread, more than the loader's decoder does."""
    mine = figures.decode_resize or 0.0
    if figures.trains_on_shared_processors:
        return cheaper_loading(figures, 1 / mine - 1 / faster, what, why, change)
    rate, then = capped(figures, cheaper(figures, 1 / mine, 1 / faster))
    return Advice(what=what, images_per_s=rate, why=why + then, change=change)


def _workers(record: BenchRecord, figures: Figures) -> Advice | None:
    busy = max(1, record.workers)
    if busy >= figures.cpus:
        return None
    rate, then = capped(figures, figures.loader * figures.cpus / busy)
    if figures.cpu_s and not then:
        rate, then = lowest(rate, {"the consumer's share of them": figures.cpus / figures.cpu_s})
    why = f"{record.workers} workers of {figures.cpus} processors are used, and decoding scales with them{then}"
    return Advice(what=f"--workers {figures.cpus}", images_per_s=rate, why=why, change=Change(workers=figures.cpus))


def _processors(record: BenchRecord, figures: Figures) -> Advice | None:
    used = figures.processors_used
    rate, then = capped(figures, figures.loader * (used + 1) / used)
    return Advice(
        what="another processor for the loader",
        images_per_s=rate,
        why=f"images/s follow the processors, {used} here{then}",
    )


def _uint8(record: BenchRecord, figures: Figures) -> Advice | None:
    if record.settings.dtype == "uint8":
        return None
    told = f"copying alone does {figures.copy:,.0f} images/s" if figures.copy else "uint8 is handed out as it is"
    what = "--dtype uint8, and normalise on the device as part of the model"
    if figures.both:  # it is the model's work that changes, and the run tells nothing of that
        return Advice(what=what, images_per_s=None, why=told)
    ceilings = {
        "copying": figures.copy,
        "decoding": figures.decode_ceiling,
        "what is left for the processors": _without_feed(record, figures),
        "the workers' time": max(1, record.workers) / figures.time.worker_s if figures.time else None,
    }
    rate, then = lowest(float("inf"), ceilings)
    known = None if rate == float("inf") else rate
    return Advice(what=what, images_per_s=known, why=told + then * (known is not None), change=Change(dtype="uint8"))


def _without_feed(record: BenchRecord, figures: Figures) -> float | None:
    """Images/s of all processors where they no longer normalise, which the consumer does in one thread."""
    if record.settings.device != "cpu" or not figures.cpu_s or not figures.feed:
        return None
    left = figures.cpu_s - 1 / figures.feed
    return figures.cpus / left if left > 0 else None


def _others_programs(record: BenchRecord, figures: Figures) -> Advice | None:
    share = figures.others_share
    if not share or share < 0.1 or not figures.cpu_share:
        return None
    rate, then = capped(figures, min(figures.loader * (1 + share / figures.cpu_share), figures.decode_ceiling or 1e12))
    return Advice(
        what="stop the other programs on this machine",
        images_per_s=rate,
        why=f"they take {share:.0%} of its processors{then}",
    )


_DECODING: tuple[Offer, ...] = (_workers, _cache, _decoder, _processors, _others_programs)
_OFFERS: dict[str, tuple[Offer, ...]] = {
    "model": (bf16, enough, faster_device),
    "decode": _DECODING,
    "resize": (_workers, _processors, _others_programs),
    "cpu": (bf16, _others_programs, _cache, _decoder, processor_apart),
    "storage": (more_readers, local_cache, memory),
    "transfer": (_uint8,),
    "consumer": (_uint8,),
    "loader": (_workers, _others_programs, _cache),
}
