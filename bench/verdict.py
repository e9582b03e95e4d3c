"""The verdict: which resource limits a run, by how much, and what to change."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.bench.record import BenchRecord, decode_name

_CLOSE = 0.9  # a rate within this share of a ceiling is limited by it


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """limit: "model", "decode", "transfer" or "loader"; sentence: one line for people; call: the code to paste."""

    limit: str
    sentence: str
    call: str


def decode_ceiling(record: BenchRecord) -> float:
    """Images/s of the chosen decoder on one thread, times the processors its workers can use."""
    cpus = int(str(record.environment["cpus"]))
    one = record.rate("ceiling", decode_name(record.decoder)) or 0.0
    return one * max(1, min(record.workers or 1, cpus))


def judge(record: BenchRecord, data: str) -> Verdict:
    """What limits this run, from its own measurements; `data` is the folder as the user named it."""
    loader = record.rate("loader") or 0.0
    limit, sentence = _limit(record, loader)
    return Verdict(limit=limit, sentence=sentence, call=_call(record, data))


def _limit(record: BenchRecord, loader: float) -> tuple[str, str]:
    model, both = record.rate("model"), record.find("both")
    ceiling = decode_ceiling(record)
    transfer = next((m.images_per_s for m in record.measured if m.kind == "ceiling" and "normalise" in m.name), 0.0)
    if model is not None and loader >= model:
        waits = f", {both.wait_share:.0%} of a step waits for data" if both and both.wait_share is not None else ""
        headroom = f"the loader could feed {loader / model:.1f} times what {record.settings.model} takes"
        return "model", f"The model limits: {model:,.0f} images/s; {headroom}{waits}."
    missing = f", the model could take {model:,.0f}" if model is not None else ""
    if record.loader.get("decodes_on") == "cuda":  # nor do the pixels cross to it: the host's ceilings are none of it
        beside = f", {loader / ceiling:.1f} times what its processors could decode" if ceiling else ""
        advice = "Try more readers and workers, and a cache (--cache), of which less has to be decoded"
        return "loader", f"The loader limits, decoding on the GPU: {loader:,.0f} images/s{beside}{missing}. {advice}."
    if record.loader.get("decodes_on") == "cpu":
        share = f" of {ceiling:,.0f} that {record.decoder} could decode here" if ceiling else ""
        return "loader", (
            f"The loader limits, DALI decoding on the CPU: {loader:,.0f} images/s{share}{missing}. Without a GPU the "
            "backends torch (files) and hdf5 (a cache) are faster."
        )
    if transfer and loader >= _CLOSE * transfer:
        return "transfer", f"Copying and normalising limits: {transfer:,.0f} images/s{missing}."
    if ceiling and loader >= _CLOSE * ceiling:
        cpus = max(1, min(record.workers or 1, int(str(record.environment["cpus"]))))
        return "decode", (
            f"JPEG decoding on {cpus} processor{'s' if cpus > 1 else ''} limits: the loader delivers {loader:,.0f} of "
            f"{ceiling:,.0f} images/s that {record.decoder} could decode{missing}. More processors help in proportion."
        )
    share = f" ({loader / ceiling:.0%} of the decode ceiling of {ceiling:,.0f})" if ceiling else ""
    return (
        "loader",
        f"The loader limits: {loader:,.0f} images/s{share}{missing}. Give it a processor of its own, or more workers.",
    )


def _call(record: BenchRecord, data: str) -> str:
    wanted = record.settings
    arguments = [
        repr(data),
        f"backend={str(record.loader.get('backend', wanted.backend))!r}",
        f"pipeline=imagenet_train({wanted.size})",
        f"batch_size={wanted.batch_size}",
        f"device={wanted.device!r}",
        f"workers={record.workers}",
        f"decoder={record.decoder!r}",
    ]
    if wanted.cache is not None:
        arguments.insert(2, f"cache={wanted.cache!r}")
    if wanted.dtype != "float32":
        arguments.insert(-2, f"dtype=torch.{wanted.dtype}")
    arguments += [f"{name}={value!r}" for name, value in record.options.items()]
    body = "".join(f"    {argument},\n" for argument in arguments)
    torch = "import torch\n\n" if wanted.dtype != "float32" else ""
    return (
        f"{torch}from penstock.loaders import create_loader\n"
        "from penstock.pipelines import imagenet_train\n\n"
        f"loader = create_loader(\n{body})"
    )
