"""The report page: sections, such as those of a benchmark record, in one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.bench.record.bench_record import BenchRecord
from penstock.bench.report.section_types import Section
from penstock.bench.report.sections_choices import changes_section, machine_section, repeat_section, search_sections
from penstock.bench.report.sections_measured import measurements_section, over_time_section, step_section
from penstock.bench.report.text import hindrance_text, rate_text, rounds_text, shown, spread_text

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


def page(record: BenchRecord) -> str:
    """Return the page of a record as HTML, the same text for the same record.

    Sections that an older record has no data for are left out and listed. Raises TypeError, ValueError or KeyError for
    an inconsistent record.
    """
    verdict = record.verdict
    return make_page(
        "benchmark report",
        _title(record),
        record_sections(record),
        sentence=verdict.sentence if verdict else "",
        about=about_text(record),
        tiles=_tiles(record),
    )


def make_page(
    kind: str,
    title: str,
    sections: Sequence[Section],
    *,
    about: str,
    sentence: str = "",
    tiles: Sequence[Mapping[str, str]] = (),
) -> str:
    """Return a page as HTML; the template escapes every text."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if hasattr(value, "__html__") else shown(value),  # macros are escaped already
    )
    template = environment.from_string(_TEMPLATE.read_text("utf-8"))
    filled = template.render(
        kicker=f"Penstock {kind}", title=title, sentence=sentence, about=about, tiles=tiles, sections=sections
    )
    return filled.lstrip() + "\n"


def write_page(made: str, path: Path) -> None:
    """Write a page to `path`; a missing folder is created. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(made, "utf-8")


def record_sections(record: BenchRecord) -> list[Section]:
    """Return the page's sections; the last one lists those without data in the record."""
    sections = [
        changes_section(record),
        measurements_section(record),
        step_section(record),
        over_time_section(record),
        *search_sections(record),
        machine_section(record),
        repeat_section(record),
    ]
    missing = [f"{section.title}: {section.missing}." for section in sections if section.missing]
    last = [Section(title="Not in this record", notes=missing)] if missing else []
    return [section for section in sections if not section.missing] + last


def _title(record: BenchRecord) -> str:
    limit = record.verdict.limit if record.verdict else ""
    limits = f"; the limit is {_LIMITS.get(limit, limit)}" if limit else ""
    return f"{rate_text(record.rate('loader') or 0.0)} images/s from the loader{limits}"


def about_text(record: BenchRecord) -> str:
    """Describe the measured data, the machine, the loader, and whether other programs disturbed the run."""
    environment, wanted = record.environment, record.settings
    gpu = f", {environment['gpu']}" if environment.get("gpu") else ""
    return (
        f"{record.data.get('summary', 'data without a summary')}. "
        f"{environment.get('cpus')} × {environment.get('cpu')}{gpu}. "
        f"Backend {record.loader.get('backend', wanted.backend)}, {record.workers} workers, decoder {record.decoder}, "
        f"batches of {wanted.batch_size:,} at {wanted.size} × {wanted.size}, {wanted.dtype}; medians of "
        f"{rounds_text(record)}\N{NO-BREAK SPACE}s. {hindrance_text(record)}"
    )


def _tiles(record: BenchRecord) -> list[Mapping[str, str]]:
    tiles = []
    for kind, name in (("loader", "Loader alone"), ("both", "Loader + model"), ("model", "Model alone")):
        found = record.find(kind)
        if found is not None:
            waits = "" if found.wait_share is None else f"; {found.wait_share:.0%} of a step waits for data"
            note = f"{spread_text((found.low, found.high))} over the rounds{waits}"
            tiles.append(_tile(kind, name, rate_text(found.images_per_s), "images/s", note))
    loader = record.find("loader")
    for other in [*record.all_of("other"), *record.all_of("baseline")]:
        if loader is not None and other.images_per_s:
            times = f"{loader.images_per_s / other.images_per_s:.2f}"
            note = f"the images/s of {other.label}, {rate_text(other.images_per_s)}"
            tiles.append(_tile(other.kind, "Loader compared", times, "times", note))
    return tiles


def _tile(kind: str, name: str, value: str, unit: str, note: str) -> Mapping[str, str]:
    return {"kind": kind, "name": name, "value": value, "unit": unit, "note": note}
