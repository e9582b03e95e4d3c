"""The report page: a benchmark record as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.bench.record.record import BenchRecord, Measured
from penstock.bench.record.saved_record import restored
from penstock.bench.report.sections import Section, measured_name
from penstock.bench.report.sections_choices import (
    changes_section,
    machine_section,
    repeat_section,
    search_sections,
    tradeoff_section,
)
from penstock.bench.report.sections_measured import measurements_section, over_time_section, waterfall_section
from penstock.bench.report.svg import require_matplotlib
from penstock.bench.report.text import cleaned, rate_text, spread_text

_TEMPLATE = Path(__file__).with_name("page.jinja")
_LIMITS = {
    "model": "the model",
    "consumer": "the consuming process",
    "transfer": "copying and normalising",
    "storage": "storage",
    "decode": "JPEG decoding",
    "resize": "resizing",
    "cpu": "the processors",
    "loader": "the loader",
}


def page(document: Mapping[str, Any]) -> str:
    """The page of a record as `penstock bench --json` writes it: HTML, the same bytes for the same record.

    What an older record does not hold is left out, and said. Raises LoaderError E-DEPENDENCY without matplotlib,
    KeyError, TypeError, ValueError or AttributeError for what is no record.
    """
    require_matplotlib("no report page")
    from jinja2 import Environment, StrictUndefined

    document = cleaned(document)
    record = restored(document)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_TEMPLATE.read_text("utf-8"))
    verdict = document.get("verdict") or {}
    about = {
        "title": _title(record, verdict),
        "sentence": verdict.get("sentence", ""),
        "data": record.data.get("summary", "data without a summary"),
        "machine": _machine(record),
        "run": _run(record),
        "tiles": _tiles(record),
        "sections": _sections(document, record),
    }
    return template.render(about).lstrip() + "\n"


def write_page(document: Mapping[str, Any], path: Path) -> None:
    """The page in `path`, whose folder is made where it is missing. Raises what `page` does, OSError."""
    text = page(document)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def _sections(document: Mapping[str, Any], record: BenchRecord) -> list[Section]:
    return [
        changes_section(document, record),
        measurements_section(record),
        waterfall_section(record),
        over_time_section(record),
        *search_sections(document),
        tradeoff_section(document.get("cache")),
        machine_section(record),
        repeat_section(document, record),
    ]


def _title(record: BenchRecord, verdict: Mapping[str, Any]) -> str:
    limit = str(verdict.get("limit", ""))
    limits = f"; the limit is {_LIMITS.get(limit, limit)}" if limit else ""
    return f"{rate_text(record.rate('loader') or 0.0)} images/s from the loader{limits}"


def _machine(record: BenchRecord) -> str:
    environment = record.environment
    gpu = f", {environment['gpu']}" if environment.get("gpu") else ""
    return f"{environment.get('cpus')} × {environment.get('cpu')}{gpu}"


def _run(record: BenchRecord) -> str:
    wanted = record.settings
    return (
        f"Backend {record.loader.get('backend', wanted.backend)}, {record.workers} workers, decoder {record.decoder}, "
        f"batches of {wanted.batch_size:,} at {wanted.size} × {wanted.size}, {wanted.dtype}; medians of "
        f"{wanted.rounds} alternating rounds of {wanted.seconds:g}\N{NO-BREAK SPACE}s"
    )


def _tiles(record: BenchRecord) -> list[dict[str, str]]:
    tiles = []
    for kind, name in (("loader", "Loader alone"), ("both", "Loader + model"), ("model", "Model alone")):
        found = record.find(kind)
        if found is not None:
            waits = "" if found.wait_share is None else f"; {found.wait_share:.0%} of a step waits for data"
            tiles.append(_tile(kind, name, rate_text(found.images_per_s), "images/s", _between(found) + waits))
    loader = record.find("loader")
    for other in [*record.all_of("other"), *record.all_of("baseline")]:
        if loader is not None and other.images_per_s:
            times = f"{loader.images_per_s / other.images_per_s:.2f}"
            note = f"the images/s of {measured_name(other)}, {rate_text(other.images_per_s)}"
            tiles.append(_tile(other.kind, "Loader compared", times, "times", note))
    return tiles


def _tile(kind: str, name: str, value: str, unit: str, note: str) -> dict[str, str]:
    return {"kind": kind, "name": name, "value": value, "unit": unit, "note": note}


def _between(measured: Measured) -> str:
    return spread_text((measured.low, measured.high)) + " over the rounds"
