"""A benchmark record as tables for people."""

from __future__ import annotations

from rich.console import Console, Group
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from penstock.bench.measure.resources import Resources
from penstock.bench.record.backend_options import non_default_options
from penstock.bench.record.record import BenchRecord, Measured, Tried, decode_ceilings, decode_name
from penstock.bench.report.applied_report import applied_parts
from penstock.bench.verdict.advice import BOTH
from penstock.bench.verdict.verdict import Verdict, decode_ceiling

_FASTER = 1.05  # a smaller lead is noise
_SHOWN = 4  # candidates of a backend
_KINDS = {
    "loader": "loader",
    "other": "other loader",
    "baseline": "baseline",
    "ceiling": "ceiling",
    "model": "model",
    "both": "loader + model",
}


def render(record: BenchRecord, verdict: Verdict) -> Group:
    """Table, knobs, ratios, verdict and the call to paste."""
    parts: list[object] = [_table(record), Text()]
    parts += [Text(line) for line in (*searched(record), *record.notes, *_ratios(record))]
    parts += [Text(verdict.sentence, style="bold"), *map(Text, _advice(record, verdict))]
    parts += applied_parts(record)
    parts += [Text(_recommendation(record)), Text()]
    parts.append(Syntax(verdict.call, "python", background_color="default", word_wrap=True))
    return Group(*parts)  # type: ignore[arg-type]


def _table(record: BenchRecord) -> Table:
    environment = record.environment
    machine = f"{environment['cpus']} x {environment['cpu']}" + (
        f", {environment['gpu']}" if environment["gpu"] else ""
    )
    settings = record.settings
    run = f"{record.workers} workers, batches of {settings.batch_size}, {settings.dtype}"
    title = f"{record.data['summary']}\n{machine}; {run}"
    table = Table(title=title, title_justify="left", title_style="", caption=_caption(record), caption_justify="left")
    table.add_column("what")
    table.add_column("measured")
    table.add_column("images/s", justify="right")
    table.add_column("spread", justify="right")
    resources = [measured.resources for measured in record.measured if measured.resources]
    if resources:
        table.add_column("took", justify="right")
    order = list(_KINDS)
    for measured in sorted(record.measured, key=lambda m: order.index(m.kind)):
        cells = (_KINDS[measured.kind], _name(measured), f"{measured.images_per_s:,.0f}", _spread(measured))
        table.add_row(*cells, *([_taken(measured.resources)] if measured.resources else []))
    ceiling = decode_ceiling(record)
    if ceiling:
        table.add_row("ceiling", f"decode + resize, {record.decoder}, all workers", f"{ceiling:,.0f}", "computed")
    return table


def _taken(resources: Resources) -> str:
    """What a measurement took of the machine: a line each of processors, memory and GPU."""
    shares = ((resources.cpu_share, "CPU"), (resources.gpu_share, "GPU"))
    sizes = ((resources.memory_mb, "MB"), (resources.gpu_memory_mb, "MB GPU"))
    lines = [f"{share:.0%} {name}" for share, name in shares if share is not None]
    lines += [f"{size:,.0f} {name}" for size, name in sizes if size is not None]
    return "\n".join(lines)


def _name(measured: Measured) -> str:
    name = f"{measured.name}, {measured.note}" if measured.note else measured.name
    return name if measured.wait_share is None else f"{name} ({measured.wait_share:.0%} of the step waiting for data)"


def _spread(measured: Measured) -> str:
    return f"{measured.low:,.0f} to {measured.high:,.0f}"


def _caption(record: BenchRecord) -> str:
    settings = record.settings
    return f"medians of {settings.rounds} alternating rounds of {settings.seconds:g} s; spread: lowest to highest round"


def searched(record: BenchRecord) -> list[str]:
    """A line for each backend on what the search tried."""
    by_backend: dict[str, list[Tried]] = {}
    for tried in record.candidates:
        by_backend.setdefault(tried.backend, []).append(tried)
    return [_searched(tried) for tried in by_backend.values()]


def _searched(tried: list[Tried]) -> str:
    start = tried[0]
    measured = sorted((t for t in tried if t.images_per_s is not None), key=lambda t: -(t.images_per_s or 0.0))
    rates = [f"{_unlike(start, t)}: {t.images_per_s:,.0f}" for t in measured[:_SHOWN]]
    if len(measured) > _SHOWN:
        rates.append(f"{len(measured) - _SHOWN} slower")
    text = f"Tried {start.name}, images/s by short measurements: {', '.join(rates) or 'none'}"
    return "; ".join([text, *(f"{_unlike(start, t)}: {t.why}" for t in tried if t.why)]) + "."


def _unlike(start: Tried, tried: Tried) -> str:
    """What sets a candidate apart from the one that the search of its backend began with."""
    decoder = [] if tried.decoder == start.decoder else [tried.decoder]
    knobs = [f"{knob} {value}" for knob, value in tried.options.items() if start.options.get(knob) != value]
    return ", ".join([*decoder, *knobs]) or "as it is"


def _ratios(record: BenchRecord) -> list[str]:
    loader = record.find("loader")
    return [
        f"Penstock delivers {loader.images_per_s / other.images_per_s:.2f} times the images/s of {_name(other)}."
        for other in record.all_of("baseline")
        if loader is not None and other.images_per_s
    ]


def _advice(record: BenchRecord, verdict: Verdict) -> list[str]:
    lines = []
    for advice in verdict.advice:
        gain, now = "", record.rate(advice.quantity)
        if advice.images_per_s is not None and now:
            whose = " of loader + model" * (advice.quantity == BOTH)
            gain = (
                f": predicted {advice.images_per_s:,.0f} images/s{whose}, {advice.images_per_s / now:.2f} times this "
                "run's"
            )
        lines.append(f"To change: {advice.what}{gain} ({advice.why}).")
    return lines


def _recommendation(record: BenchRecord) -> str:
    choice = record.choice
    why = f" ({record.loader.get('decoder_reason', '')})" if not record.candidates else ""
    knobs = "".join(f", {name} {value}" for name, value in non_default_options(choice.backend, choice.options).items())
    text = (
        f"Recommended: backend {choice.backend!r}, {choice.options.get('workers')} workers{knobs}, decoder "
        f"{choice.decoder!r}{why}: {choice.images_per_s or 0:,.0f} images/s measured."
    )
    if choice.backend == "dali" or record.candidates:  # which decodes by itself; where the decoders were compared
        return text
    mine = record.rate("ceiling", decode_name(record.decoder))
    others = decode_ceilings(record)
    best = max(others, key=lambda name: others[name], default=None)
    if best is not None and mine and others[best] > _FASTER * mine:
        text += f" Another decoder was {others[best] / mine:.2f} times as fast alone ({best}): try it with --decoder."
    return text


def print_record(record: BenchRecord, verdict: Verdict) -> None:
    """To standard output; plain text where that is no terminal."""
    console = Console()
    console.print(render(record, verdict), soft_wrap=False)
