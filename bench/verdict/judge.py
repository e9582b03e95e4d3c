"""The verdict: which resource limits a run, by how much, and what to change."""

from __future__ import annotations

from dataclasses import replace

from penstock.bench.record.advice import Verdict
from penstock.bench.record.bench_record import BenchRecord
from penstock.bench.record.non_default_options import non_default_options
from penstock.bench.verdict.figures import CLOSE, SCALES, Figures
from penstock.bench.verdict.rules import advise
from penstock.loaders.data.views.subset import PART_OPTIONS

_CALL_WIDTH = 74  # characters of a line of arguments in the call to paste
_HINDERING = 0.1  # share of the processors that other programs must take to be mentioned


def judge(record: BenchRecord, data: str) -> Verdict:
    """Return what limits this run according to its measurements; `data` is the folder as the user wrote it."""
    figures = Figures(record)
    limit, sentence = _find_limit(record, figures)
    if figures.model is None:
        sentence += f" A model that takes more than {figures.loader:,.0f} images/s would wait for data."
    return Verdict(limit=limit, sentence=sentence, advice=advise(record, limit), call=write_call(record, data))


def without_paths(record: BenchRecord) -> BenchRecord:
    """Return the record in a form to share: DATA replaces the data's path, and only the name of a cache is kept."""
    named = replace(record, settings=record.settings.without_paths())
    return replace(named, verdict=named.verdict and replace(named.verdict, call=write_call(named, "DATA")))


def _find_limit(record: BenchRecord, figures: Figures) -> tuple[str, str]:
    """Return the limit and its sentence; the last stage of an image's way is checked first."""
    loader, model, ceiling = figures.loader, figures.model, figures.decode_ceiling
    if model is not None and loader >= model:
        return _judge_training(record, figures, model)
    missing = f", the model could take {model:,.0f}" if model is not None else ""
    if figures.waits_for_network:
        return _judge_network(figures, missing)
    if record.loader.get("decodes_on") == "cuda":  # the host's ceilings do not bound the GPU's work
        compared = f", {loader / ceiling:.1f} times what its processors could decode" if ceiling else ""
        advice = "Try more readers and workers, and a cache (--cache), which needs less decoding"
        return "loader", f"The loader limits, decoding on the GPU: {loader:,.0f} images/s{compared}{missing}. {advice}."
    if record.loader.get("decodes_on") == "cpu":
        share = f" of {ceiling:,.0f} that {record.decoder} could decode here" if ceiling else ""
        return "loader", (
            f"The loader limits, DALI decoding on the CPU: {loader:,.0f} images/s{share}{missing}. Without a GPU the "
            "backends torch (files) and hdf5 (a cache) are faster."
        )
    if figures.transfer and loader >= CLOSE * figures.transfer:
        return "transfer", f"Copying and normalising limits: {figures.transfer:,.0f} images/s{missing}."
    if figures.replayed and loader >= CLOSE * figures.replayed:
        return "consumer", (
            f"The consuming process limits: with the loader removed, batches from memory arrive at "
            f"{figures.replayed:,.0f} images/s, the loader's at {loader:,.0f}{missing}."
        )
    if figures.workers_wait and figures.feed:
        return _judge_idle_workers(figures, missing)
    return _judge_producing(record, figures, missing)


def _judge_idle_workers(figures: Figures, missing: str) -> tuple[str, str]:
    """Judge a run with idle workers and ready batches; on shared processors the consumer is slower than alone."""
    assert figures.time is not None
    limit, what = "consumer", "The consuming process limits"
    if figures.transfer and figures.transfer <= figures.feed / CLOSE:  # type: ignore[operator]
        limit, what = "transfer", "Copying and normalising limits"
    return limit, (
        f"{what}: {figures.loader:,.0f} images/s, {figures.feed:,.0f} if nothing else runs{missing}; the workers are "
        f"busy {figures.time.busy:.0%} of their time, and {figures.time.queue_depth:.1f} batches are ready on average."
    )


def _judge_training(record: BenchRecord, figures: Figures, model: float) -> tuple[str, str]:
    """Judge a run in which the loader alone is faster than the model alone."""
    loader, both, replayed = figures.loader, figures.both, figures.replayed_model
    if both is not None and both < CLOSE * model:
        if replayed is not None and replayed < CLOSE * model and both >= CLOSE * replayed:
            return "consumer", (
                f"Feeding the model limits, not the loader: {both:,.0f} images/s with it, {replayed:,.0f} with batches "
                f"from memory instead, {model:,.0f} on a batch that is already on the device."
            )
        share = figures.both_cpu_share
        if share is not None and share + (figures.others_share or 0.0) >= CLOSE:
            return "cpu", (
                f"Loader and model share the processors, which are all busy ({share:.0%} of {figures.cpus} by them): "
                f"{both:,.0f} images/s together, {loader:,.0f} and {model:,.0f} alone."
            )
    found = record.find("both")
    waits = f", {found.wait_share:.0%} of a step waits for data" if found and found.wait_share is not None else ""
    headroom = f"the loader could feed {loader / model:.1f} times what {record.settings.model} takes"
    return "model", f"The model limits: {model:,.0f} images/s; {headroom}{waits}."


def _judge_network(figures: Figures, missing: str) -> tuple[str, str]:
    """Judge a run that waits for remote storage: its latency or its bandwidth."""
    store, fetched = figures.store, figures.fetched or 0.0
    assert store is not None
    rate = f"{figures.loader:,.0f} images/s{missing}"
    if figures.loader < CLOSE * fetched:
        return "latency", (
            f"Latency of the network limits: {rate}; the workers wait for requests of {1e3 * store.lone_s:,.0f} ms; "
            f"fewer than {store.requests:,} are under way; that many would bring {fetched:,.0f}."
        )
    if figures.waits_for_answers:
        more = f", {store.more_requests:,} would bring {figures.fetched_more:,.0f}" if figures.fetched_more else ""
        return "latency", (
            f"Latency of the network limits: {rate}; {store.requests:,} requests under way, "
            f"{1e3 * store.request_s:,.0f} ms each ({1e3 * store.first_byte_s:,.0f} to the first byte), bring "
            f"{fetched:,.0f}{more}."
        )
    more = f", no more with {store.more_requests:,}" if figures.fetched_more else ""
    decoding = f"; decoding could do {figures.decode_ceiling:,.0f}" if figures.decode_ceiling else ""
    return "bandwidth", (
        f"Bandwidth of the network limits: {rate}; {store.bytes_per_s / 1e6:,.1f} MB/s ({fetched:,.0f} images/s) with "
        f"{store.requests:,} concurrent requests{more}{decoding}."
    )


def _judge_producing(record: BenchRecord, figures: Figures, missing: str) -> tuple[str, str]:
    """Judge a run that is limited between the files and the finished uint8 batch."""
    loader, ceiling, cpus = figures.loader, figures.decode_ceiling, figures.processors_used
    if figures.waits_for_reads:
        return "storage", _describe_reading(figures, missing)
    if figures.from_storage and figures.cpu_share is not None and figures.busy < CLOSE:
        reads = f", {figures.storage_reads:,.0f} if each worker reads as fast as one alone" * bool(figures.read_cold)
        return "storage", (
            f"Storage limits: {loader:,.0f} images/s{missing}; {min(1.0, figures.storage_share or 0):.0%} of the bytes "
            f"came from it{reads}, while the processors were {figures.busy:.0%} busy."
        )
    beyond = _warn_of_cold_reads(figures)
    share = f" ({loader / ceiling:.0%} of the decode ceiling of {ceiling:,.0f})" if ceiling else ""
    hindered = figures.busy >= CLOSE and (figures.others_share or 0.0) >= _HINDERING
    if ceiling and (loader >= CLOSE * ceiling or (figures.decodes_all_the_time and not hindered)):
        what, limit = ("Resizing", "resize") if figures.resize_costs_more else ("JPEG decoding", "decode")
        return limit, (
            f"{what} on {cpus} processor{'s' if cpus > 1 else ''} limits: the loader delivers {loader:,.0f} of "
            f"{ceiling:,.0f} images/s that {record.decoder} could decode{missing}. More processors help in "
            f"proportion.{beyond}"
        )
    if figures.cpu_share is not None and figures.busy >= CLOSE:
        others = f" and {figures.others_share:.0%} by other programs" if figures.others_share else ""
        return "cpu", (
            f"The processors limit: all are busy ({figures.cpu_share:.0%} by this loader{others}): "
            f"{loader:,.0f} images/s{share}{missing}.{beyond}"
        )
    return "loader", (
        f"The loader limits: {loader:,.0f} images/s{share}{missing}. Give it a dedicated processor, or more "
        f"workers.{beyond}"
    )


def _describe_reading(figures: Figures, missing: str) -> str:
    """Describe a limit of storage by how the workers spend their time."""
    time, many = figures.time, figures.read_many
    assert time is not None
    how = ""
    if many:
        scales = many > SCALES * figures.loader
        how = f"; many reads at once give {many:,.0f} images/s, " + (
            "so each waits, and more workers would read more" if scales else "so its bandwidth is used up"
        )
    return (
        f"Storage limits: {figures.loader:,.0f} images/s{missing}; the workers spend {time.read_share:.0%} of their "
        f"time reading, {1e3 * time.read_s:,.1f} ms per image, while the processors were {figures.busy:.0%} busy{how}."
    )


def _warn_of_cold_reads(figures: Figures) -> str:
    """Warn that this run read from memory if storage or the network would be slower than the loader."""
    if figures.fetched and not figures.from_network and figures.fetched < figures.loader:
        return (
            " Most images came from memory or the local copy: while they still come over the network, it gives "
            f"{figures.fetched:,.0f} images/s."
        )
    reads = figures.storage_reads
    if reads is None or figures.from_storage or reads >= figures.loader:
        return ""
    workers = max(1, figures.workers)
    return (
        f" The files were in the page cache: from storage {workers} worker{'s' * (workers > 1)} would read "
        f"{reads:,.0f} images/s."
    )


def write_call(record: BenchRecord, data: str) -> str:
    """Return the code that opens the recommended loader on the folder or cache `data`."""
    wanted, choice = record.settings, record.choice
    cache = wanted.cache if choice.cached else None
    in_place = cache is not None and choice.backend not in ("hdf5", "dali")  # the others do not accept `cache`
    crops = str(wanted.size)
    if wanted.interpolation != "bilinear":
        crops += f", interpolation={wanted.interpolation!r}"
    arguments = [
        repr(cache if in_place else data),
        f"backend={choice.backend!r}",
        f"pipeline=imagenet_train({crops})",
        f"batch_size={wanted.batch_size}",
        f"device={wanted.device!r}",
        f"workers={choice.options.get('workers')}",
        f"decoder={choice.decoder!r}",
    ]
    if cache is not None and not in_place:
        arguments.insert(2, f"cache={cache!r}")
    if wanted.dtype != "float32":
        arguments.insert(-2, f"dtype=torch.{wanted.dtype}")
    of_data = {name: value for name, value in wanted.data_options.items() if name not in choice.options}
    arguments += [f"{name}={value!r}" for name, value in of_data.items() if name in PART_OPTIONS or not in_place]
    arguments += [f"{name}={value!r}" for name, value in non_default_options(choice.backend, choice.options).items()]
    body = "".join(f"    {line}\n" for line in _pack_lines(arguments))
    torch = "import torch\n\n" if wanted.dtype != "float32" else ""
    return (
        f"{torch}from penstock.loaders import create_loader\n"
        "from penstock.pipelines import imagenet_train\n\n"
        f"loader = create_loader(\n{body})"
    )


def _pack_lines(arguments: list[str]) -> list[str]:
    """Return the arguments with commas, packed into lines of at most _CALL_WIDTH characters if they fit."""
    lines: list[str] = []
    for argument in arguments:
        if lines and len(lines[-1]) + len(argument) + 2 <= _CALL_WIDTH:
            lines[-1] += f" {argument},"
        else:
            lines.append(f"{argument},")
    return lines
