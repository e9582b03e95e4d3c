"""The rules that turn a limit into advice: each predicts the gain of its change from the run's own figures."""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock.bench.record.advice import BOTH, LOADER, Advice, Change
from penstock.bench.record.bench_record import LOSSLESS_CACHE, BenchRecord, decode_ceilings, decode_name
from penstock.bench.verdict.figures import SCALES, Figures
from penstock.loaders.data.remote.fetcher import MAX_REQUEST_BYTES
from penstock.loaders.data.remote.remote_source import RemoteOptions
from penstock.loaders.front.shuffles import BLOCK_GROUP, BLOCK_SAMPLES
from penstock.loaders.make.read_ahead import LEAD
from penstock.pipelines.errors import size_text

WORTH = 1.05  # a smaller gain is noise
_SPARE_READERS = 1.1  # more workers than needed, because their reads do not alternate evenly
_SPARE_AHEAD = 2  # times the bytes of all concurrent requests
_SPARE_WORKERS = 1.25  # more workers than a model needs on average
_OTHERS = 0.1  # minimum share of the processors that other programs take for the advice to stop them

Rule = Callable[[BenchRecord, Figures], "Advice | None"]


def advise(record: BenchRecord, limit: str) -> tuple[Advice, ...]:
    """Return the advice for `limit`, largest gain first; predictions are capped by the ceilings a rule knows."""
    figures = Figures(record)
    gains: list[tuple[float, Advice]] = []
    for rule in _RULES[limit]:
        advice = rule(record, figures)
        if advice is None:
            continue
        now = figures.both if advice.quantity == BOTH else figures.loader
        gain = advice.images_per_s / now if advice.images_per_s is not None and now else None
        # If the model limits, a change of the loader only frees processors: it is kept anyway.
        if gain is None or gain > WORTH or (limit == "model" and advice.quantity == LOADER):
            gains.append((gain or 0.0, advice))
    return tuple(advice for _, advice in sorted(gains, key=lambda entry: -entry[0]))


# ---- predictions ----


def _limit_to_lowest(rate: float, ceilings: dict[str, float | None]) -> tuple[float, str]:
    """Return `rate` capped by the lowest of the named ceilings, and a text that names that ceiling."""
    name, least = min(((k, v) for k, v in ceilings.items() if v), key=lambda kv: kv[1], default=("", math.inf))
    return (rate, "") if rate <= least else (least, f"; then {name} limits")


def _limit_to_feed_and_storage(figures: Figures, rate: float, *, storage: bool = True) -> tuple[float, str]:
    """Return `rate` capped by the ceilings of feed and storage, and a text that names the lower one."""
    return _limit_to_lowest(
        rate, {"the feed": figures.feed, "reading from storage": figures.storage_cap if storage else None}
    )


def _predict_shorter_part(figures: Figures, part_s: float, shorter_s: float) -> float:
    """Return the loader's images/s if a part of an image's work takes `shorter_s` instead of `part_s` thread seconds.

    The budget of an image is the time of one worker, or its processor time if there are as many workers as
    processors. If that is unknown, or smaller than the part itself, the part counts as the whole budget.
    """
    budget = figures.cpu_s if figures.workers >= figures.cpus else figures.time and figures.time.worker_s
    budget = max(budget or 0.0, part_s)
    return figures.loader * budget / (budget - part_s + shorter_s)


# ---- decoding and processors ----


def _faster_decoder(record: BenchRecord, figures: Figures) -> Advice | None:
    """Advise the decoder that was fastest alone, unless the search has already tried it with this backend."""
    mine, others = figures.decode_resize, decode_ceilings(record)
    others.pop(decode_name(record.decoder), None)
    best = max(others, key=lambda name: others[name], default=None)
    if not mine or best is None or others[best] <= WORTH * mine:
        return None
    name = best.split(", ")[1]
    if any((tried.backend, tried.decoder) == (record.loader.get("backend"), name) for tried in record.candidates):
        return None
    why = f"on one thread it decodes and resizes {others[best]:,.0f} images/s, {record.decoder} {mine:,.0f}"
    return _advise_cheaper_decoding(figures, others[best], f"--decoder {name}", why, Change(decoder=name))


def _lossless_cache(record: BenchRecord, figures: Figures) -> Advice | None:
    """Advise a lossless cache, which needs less decoding; the rate was measured on one thread with a sample."""
    mine, cached = figures.decode_resize, record.rate("ceiling", LOSSLESS_CACHE)
    if not mine or not cached:
        return None
    why = f"one thread decodes {cached:,.0f} crops/s of a sample's lossless cache, {mine:,.0f} of the files"
    what = "a lossless cache (--backend hdf5 --cache DATA.h5)"
    return _advise_cheaper_decoding(figures, cached, what, why, Change(cache="lossless"))


def _advise_cheaper_decoding(figures: Figures, faster: float, what: str, why: str, change: Change) -> Advice | None:
    """Return the advice for a change that decodes and resizes `faster` images/s on one thread."""
    mine = figures.decode_resize or 0.0
    if figures.trains_on_shared_processors:
        return _processors_for_the_model(figures, 1 / mine - 1 / faster, what, why, change)
    rate, then = _limit_to_feed_and_storage(figures, _predict_shorter_part(figures, 1 / mine, 1 / faster))
    return Advice(what=what, images_per_s=rate, why=why + then, change=change)


def _processors_for_the_model(figures: Figures, saved_s: float, what: str, why: str, change: Change) -> Advice | None:
    """Return the advice to save processor time of the loader for a model on the same processors."""
    together, both, model = figures.both_cpu_s, figures.both, figures.model
    if not together or not both or not model or saved_s >= together:
        return None
    rate, then = _limit_to_lowest(both * together / (together - saved_s), {"the model": model})
    return Advice(what=what, images_per_s=rate, why=why + then, quantity=BOTH, change=change)


def _worker_for_each_processor(record: BenchRecord, figures: Figures) -> Advice | None:
    """Advise one worker per processor if there are fewer; decoding scales with them."""
    busy = max(1, record.workers)
    if busy >= figures.cpus:
        return None
    rate, then = _limit_to_feed_and_storage(figures, figures.loader * figures.cpus / busy)
    if figures.cpu_s and not then:
        rate, then = _limit_to_lowest(rate, {"the consumer's share of them": figures.cpus / figures.cpu_s})
    why = f"{record.workers} workers of {figures.cpus} processors are used, and decoding scales with them{then}"
    return Advice(what=f"--workers {figures.cpus}", images_per_s=rate, why=why, change=Change(workers=figures.cpus))


def _another_processor(record: BenchRecord, figures: Figures) -> Advice | None:
    """Advise one more processor: the rate grows in proportion."""
    used = figures.processors_used
    rate, then = _limit_to_feed_and_storage(figures, figures.loader * (used + 1) / used)
    why = f"images/s grow with the processors, {used} here{then}"
    return Advice(what="another processor for the loader", images_per_s=rate, why=why)


def _free_processors(record: BenchRecord, figures: Figures) -> Advice | None:
    """Advise stopping other programs that take a large part of the processors."""
    share = figures.others_share
    if not share or share < _OTHERS or not figures.cpu_share:
        return None
    free = min(figures.loader * (1 + share / figures.cpu_share), figures.decode_ceiling or math.inf)
    rate, then = _limit_to_feed_and_storage(figures, free)
    why = f"they take {share:.0%} of its processors{then}"
    return Advice(what="stop the other programs on this machine", images_per_s=rate, why=why)


# ---- the consuming process ----


def _uint8_batches(record: BenchRecord, figures: Figures) -> Advice | None:
    """Advise uint8 batches: the model normalises on the device instead of the consuming process."""
    if record.settings.dtype == "uint8":
        return None
    why = f"copying alone does {figures.copy:,.0f} images/s" if figures.copy else "uint8 batches are not converted"
    what = "--dtype uint8, and normalise on the device as part of the model"
    if figures.both:  # the model's work changes, and the run's figures do not show by how much
        return Advice(what=what, images_per_s=None, why=why)
    ceilings = {
        "copying": figures.copy,
        "decoding": figures.decode_ceiling,
        "the rest of the processors' work": _without_feed(record, figures),
        "the workers' time": max(1, record.workers) / figures.time.worker_s if figures.time else None,
    }
    rate, then = _limit_to_lowest(math.inf, ceilings)
    known = None if math.isinf(rate) else rate
    return Advice(what=what, images_per_s=known, why=why + then * (known is not None), change=Change(dtype="uint8"))


def _without_feed(record: BenchRecord, figures: Figures) -> float | None:
    """Return images/s of all processors without normalising, which the consumer does in one thread."""
    if record.settings.device != "cpu" or not figures.cpu_s or not figures.feed:
        return None
    left = figures.cpu_s - 1 / figures.feed
    return figures.cpus / left if left > 0 else None


# ---- storage ----


def _more_readers(record: BenchRecord, figures: Figures) -> Advice | None:
    """Advise more workers if they wait for reads, up to the limit of storage, processors or feed."""
    time, many, now = figures.time, figures.read_many, max(1, record.workers)
    if time is None or figures.cpu_s is None or not many or many <= SCALES * figures.loader:
        return None
    ceilings = {
        "reading with many threads": many,
        "the processors": figures.cpus / figures.cpu_s,
        "the feed": figures.feed,
    }
    wanted = math.ceil(_SPARE_READERS * now * min(rate for rate in ceilings.values() if rate) / figures.loader)
    workers = min(figures.worth_reading, wanted)
    if workers <= now:
        return None
    rate, then = _limit_to_lowest(figures.loader * workers / now, ceilings)
    why = (
        f"per image a worker waits {1e3 * time.read_s:,.1f} ms for its bytes and works "
        f"{1e3 * (time.worker_s - time.read_s):,.1f} ms; many threads at once read {many:,.0f} images/s{then}"
    )
    return Advice(what=f"--workers {workers}", images_per_s=rate, why=why, change=Change(workers=workers))


def _local_cache(record: BenchRecord, figures: Figures) -> Advice | None:
    """Advise a cache on a disk with almost free reads, not on the one that already limits."""
    cached, mine, time = record.rate("ceiling", LOSSLESS_CACHE), figures.decode_resize, figures.time
    if not cached or not mine or time is None or figures.cpu_s is None:
        return None
    # An image's time without its reads, decoding crops of the cache instead of whole files.
    of_worker = max(0.0, time.worker_s - time.read_s - 1 / mine) + 1 / cached
    of_all = max(0.0, figures.cpu_s - 1 / mine) + 1 / cached
    ceilings = {"the processors": figures.cpus / of_all, "the feed": figures.feed}
    rate, then = _limit_to_lowest(max(1, record.workers) / of_worker, ceilings)
    why = f"without the wait for reads a worker needs {1e3 * of_worker:,.1f} ms per image, while it is in memory{then}"
    what = "a lossless cache on a fast disk of this machine (--backend hdf5 --cache LOCAL.h5)"
    change = None if figures.from_storage or figures.from_network else Change(cache="lossless")
    return Advice(what=what, images_per_s=rate, why=why, change=change)


def _faster_storage(record: BenchRecord, figures: Figures) -> Advice | None:
    """Advise faster storage; decoding or the feed is the next limit."""
    if not figures.decode_ceiling:
        return None
    rate, then = _limit_to_feed_and_storage(figures, figures.decode_ceiling, storage=False)
    why = f"with the page cache only decoding is left{then}"
    return Advice(what="faster storage, or enough memory for the data to stay in", images_per_s=rate, why=why)


# ---- the network ----


def _more_requests(record: BenchRecord, figures: Figures) -> Advice | None:
    """Advise more concurrent requests, which were measured without the loader."""
    store, more = figures.store, figures.fetched_more
    if store is None or not store.more_requests or not more or more <= SCALES * figures.loader:
        return None
    rate, then = _limit_to_decoding(figures, more)
    needed = math.ceil(_SPARE_AHEAD * store.more_requests * store.bytes_per_request)
    ahead = needed if needed > _bytes_ahead(record) else None
    what = f"--requests {store.more_requests}" + (f" --bytes-ahead {ahead}" if ahead else "")
    why = f"that many at once fetch {more:,.0f} images/s without any processing{then}"
    change = Change(requests=store.more_requests, bytes_ahead=ahead)
    return Advice(what=what, images_per_s=rate, why=why, change=change)


def _more_bytes_ahead(record: BenchRecord, figures: Figures) -> Advice | None:
    """Advise fetching further ahead if the bytes ahead, not the number of requests, limit concurrent requests."""
    store, ahead = figures.store, _bytes_ahead(record)
    if store is None or not figures.fetched or ahead >= store.requests * store.bytes_per_request:
        return None
    needed = math.ceil(_SPARE_AHEAD * store.requests * store.bytes_per_request)
    rate, then = _limit_to_decoding(figures, figures.fetched)
    why = f"{ahead:,} bytes are enough for {ahead / store.bytes_per_request:,.1f} of {store.requests:,} requests{then}"
    return Advice(what=f"--bytes-ahead {needed}", images_per_s=rate, why=why, change=Change(bytes_ahead=needed))


def _bytes_ahead(record: BenchRecord) -> int:
    for options in (record.choice.options, record.settings.data_options):
        if isinstance(ahead := options.get("bytes_ahead"), int):
            return ahead
    return RemoteOptions().bytes_ahead


def _neighbours_in_one_request(record: BenchRecord, figures: Figures) -> Advice | None:
    """Advise an order in which one request fetches many neighbours."""
    store, size = figures.store, record.data.get("bytes_an_image")
    if store is None or not isinstance(size, int) or not size:
        return None
    brought = min(BLOCK_SAMPLES, MAX_REQUEST_BYTES // size)
    if brought <= SCALES * store.images_per_request:
        return None
    bandwidth = max(store.bytes_per_s, store.more_bytes_per_s or 0.0) / size
    rate, then = _limit_to_decoding(figures, min(figures.loader * brought / store.images_per_request, bandwidth))
    why = (
        f"a request then fetches up to {brought:,} images, now {store.images_per_request:,.1f}; not for data sorted by "
        f"class{then}"
    )
    held = math.ceil(LEAD * BLOCK_GROUP * BLOCK_SAMPLES * size)  # in memory, if there is no local copy
    ahead = held if held > _bytes_ahead(record) and "local_cache" not in record.settings.data_options else None
    what = "shuffle='blocks' in create_loader" + (f", and --bytes-ahead {ahead}" if ahead else "")
    return Advice(what=what, images_per_s=rate, why=why, change=Change(shuffle="blocks", bytes_ahead=ahead))


def _local_copy(record: BenchRecord, figures: Figures) -> Advice | None:
    """Advise a local copy of the fetched data, which serves all epochs except the first."""
    size, images = record.data.get("bytes_an_image"), record.data.get("images")
    if not figures.decode_ceiling or "local_cache" in record.settings.data_options:
        return None
    rate, then = _limit_to_decoding(figures, figures.decode_ceiling)
    whole = f" ({size_text(size * images)})" if isinstance(size, int) and isinstance(images, int) else ""
    why = f"from the second epoch on nothing is fetched; it is as large as the data{whole} or --local-bytes{then}"
    return Advice(what="--local-cache FOLDER", images_per_s=rate, why=why)


def _more_bandwidth(record: BenchRecord, figures: Figures) -> Advice | None:
    """Advise more bandwidth if it is used up; decoding or the feed is the next limit."""
    if not figures.decode_ceiling:
        return None
    rate, then = _limit_to_decoding(figures, figures.decode_ceiling)
    what = "more bandwidth, or storage that is nearer"
    return Advice(what=what, images_per_s=rate, why=f"only decoding is left{then}")


def _limit_to_decoding(figures: Figures, rate: float) -> tuple[float, str]:
    """Return `rate` of the network capped by the ceilings of processing, and a text that names the lowest one."""
    busy = figures.cpus / figures.cpu_s if figures.cpu_s else None
    ceilings = {"decoding": figures.decode_ceiling or None, "the processors": busy, "the feed": figures.feed}
    return _limit_to_lowest(rate, ceilings)


# ---- training ----


def _mixed_precision(record: BenchRecord, figures: Figures) -> Advice | None:
    """Advise bf16: the compute part of a step shrinks as for the model alone; its wait for data stays."""
    model, faster, both = figures.model, figures.model_bf16, figures.both
    if not model or not faster or faster <= WORTH * model or record.settings.amp != "off":
        return None
    why = f"the model alone does {faster:,.0f} images/s with it, {model:,.0f} without"
    if not both:
        return Advice(what="--amp bf16", images_per_s=None, why=why)
    waits = figures.wait_share or 0.0
    ceilings = {
        "the model": faster,
        "the loader": figures.loader,
        "the processors that both share": _with_cheaper_model(figures, model / faster, record.settings.device),
    }
    rate, then = _limit_to_lowest(both / (waits + (1 - waits) * model / faster), ceilings)
    change = Change(amp="bf16", dtype="bfloat16" if record.settings.dtype == "float32" else None)
    return Advice(what="--amp bf16", images_per_s=rate, why=why + then, quantity=BOTH, change=change)


def _with_cheaper_model(figures: Figures, shorter: float, device: str) -> float | None:
    """Return images/s of all processors if the model's CPU time is multiplied by `shorter`."""
    together, loading = figures.both_cpu_s, figures.cpu_s
    if not together or not loading:
        return None
    training = max(0.0, together - loading)
    return figures.cpus / (together - training + training * (shorter if device == "cpu" else 1.0))


def _fewer_workers(record: BenchRecord, figures: Figures) -> Advice | None:
    """Advise as many workers as the model needs plus a margin, if the loader has more."""
    if not figures.model or record.workers < 2:
        return None
    fewer = max(1, math.ceil(_SPARE_WORKERS * record.workers * figures.model / figures.loader))
    if fewer >= record.workers:
        return None
    rate = figures.loader * fewer / record.workers
    why = f"enough for a model of {figures.model:,.0f} images/s with a quarter to spare; frees the other processors"
    return Advice(what=f"--workers {fewer}", images_per_s=rate, why=why, change=Change(workers=fewer))


def _faster_device(record: BenchRecord, figures: Figures) -> Advice | None:
    """Advise a faster device or a smaller model; its gain cannot be predicted."""
    why = f"the loader could feed {figures.loader:,.0f} images/s"
    return Advice(what="a faster device or a smaller model", images_per_s=None, why=why)


def _separate_cpus(record: BenchRecord, figures: Figures) -> Advice | None:
    """Advise a dedicated processor for the training process if it shares them with the loader."""
    if figures.both is None:
        return None
    what = "a processor of its own for the training process (fewer --workers), or more processors"
    return Advice(what=what, images_per_s=None, why="loader and model share them, and each is faster alone")


_RULES: dict[str, tuple[Rule, ...]] = {
    "model": (_mixed_precision, _fewer_workers, _faster_device),
    "decode": (_worker_for_each_processor, _lossless_cache, _faster_decoder, _another_processor, _free_processors),
    "resize": (_worker_for_each_processor, _another_processor, _free_processors),
    "cpu": (_mixed_precision, _free_processors, _lossless_cache, _faster_decoder, _separate_cpus),
    "latency": (_more_requests, _more_bytes_ahead, _neighbours_in_one_request, _local_copy, _local_cache),
    "bandwidth": (_local_copy, _local_cache, _more_bandwidth),
    "storage": (_more_readers, _local_cache, _faster_storage),
    "transfer": (_uint8_batches,),
    "consumer": (_uint8_batches,),
    "loader": (_worker_for_each_processor, _free_processors, _lossless_cache),
}
