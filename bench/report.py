"""A benchmark record as tables for people."""

from __future__ import annotations

from rich.console import Console, Group
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from penstock.bench.bench_run import BenchRecord, Measured, decode_name
from penstock.bench.verdict import Verdict, decode_ceiling

_FASTER = 1.05  # a smaller lead is noise
_KINDS = {"loader": "loader", "baseline": "baseline", "ceiling": "ceiling", "model": "model", "both": "loader + model"}


def render(record: BenchRecord, verdict: Verdict) -> Group:
    """Table, verdict and the call to paste."""
    parts: list[object] = [_table(record), Text()]
    ratio = _ratio(record)
    if ratio:
        parts.append(Text(ratio))
    parts += [Text(verdict.sentence, style="bold"), Text(_recommendation(record)), Text()]
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
    order = list(_KINDS)
    for measured in sorted(record.measured, key=lambda m: order.index(m.kind)):
        table.add_row(_KINDS[measured.kind], _name(measured), f"{measured.images_per_s:,.0f}", _spread(measured))
    ceiling = decode_ceiling(record)
    if ceiling:
        table.add_row("ceiling", f"decode + resize, {record.decoder}, all workers", f"{ceiling:,.0f}", "computed")
    return table


def _name(measured: Measured) -> str:
    if measured.wait_share is None:
        return measured.name
    return f"{measured.name} ({measured.wait_share:.0%} of the step waiting for data)"


def _spread(measured: Measured) -> str:
    return f"{measured.low:,.0f} to {measured.high:,.0f}"


def _caption(record: BenchRecord) -> str:
    settings = record.settings
    return f"medians of {settings.rounds} alternating rounds of {settings.seconds:g} s; spread: lowest to highest round"


def _ratio(record: BenchRecord) -> str | None:
    loader, baseline = record.find("loader"), record.find("baseline")
    if loader is None or baseline is None:
        return None
    ratio = loader.images_per_s / baseline.images_per_s
    return f"Penstock delivers {ratio:.2f} times the images/s of torch DataLoader + Pillow with the same workers."


def _recommendation(record: BenchRecord) -> str:
    why = record.loader.get("decoder_reason", "")
    text = (
        f"Recommended: backend {record.loader.get('backend')!r}, {record.workers} workers, decoder {record.decoder!r} "
        f"({why}): {record.rate('loader') or 0:,.0f} images/s measured."
    )
    mine = record.rate("ceiling", decode_name(record.decoder))
    others = {m.name: m.images_per_s for m in record.measured if m.kind == "ceiling" and m.name.startswith("decode")}
    best = max(others, key=lambda name: others[name], default=None)
    if best is not None and mine and others[best] > _FASTER * mine:
        text += f" Another decoder was {others[best] / mine:.2f} times as fast alone ({best}): try it with --decoder."
    return text


def print_record(record: BenchRecord, verdict: Verdict) -> None:
    """To standard output; plain text where that is no terminal."""
    console = Console()
    console.print(render(record, verdict), soft_wrap=False)
