"""Text for the page and the terminal: escaped control characters, formatted figures and commands."""

from __future__ import annotations

import dataclasses
import re
import shlex
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from penstock.bench.record.bench_record import BenchRecord
from penstock.bench.record.resources import Resources
from penstock.bench.record.settings import BenchSettings

# Control characters except line feed, lone surrogates, and marks that change the text direction.
_UNSHOWABLE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_HINDERING = 0.25  # share of the processors that other programs, or a hypervisor, must take for a warning


def shown(value: Any) -> Any:
    """Return text with unprintable and direction-changing characters escaped as in Python."""
    return _UNSHOWABLE.sub(lambda found: ascii(found[0])[1:-1], value) if isinstance(value, str) else value


def rate_text(rate: float | None) -> str:
    """Write images/s with at least two significant digits; nothing for None."""
    return "" if rate is None else f"{rate:.1f}" if 0 < rate < 10 else f"{rate:,.0f}"


def spread_text(rates: Collection[float]) -> str:
    """Write the lowest to the highest of `rates`."""
    return f"{rate_text(min(rates))} to {rate_text(max(rates))}"


def times_text(rate: float | None, now: float | None) -> str:
    """Write the rate as a multiple of `now`; nothing if one of them is unknown."""
    return f"{rate / now:.2f} ×" if rate is not None and now else ""


def ratio_text(ratios: Sequence[float]) -> str:
    """Write the median of ratios of paired rounds, with their range."""
    spread = f" ({min(ratios):.1f}-{max(ratios):.1f})" if len(ratios) > 1 else ""
    return f"{statistics.median(ratios):.2f} x{spread}"


def hindrance_text(record: BenchRecord) -> str:
    """Return a warning if other programs kept the processors too busy for the settings to be reliable, else ""."""
    loader = record.find("loader")
    share = loader.resources.others_share if loader and loader.resources else None
    if share is None or share < _HINDERING:
        return ""
    return (
        f"Do not keep the settings of this run: other programs kept {share:.0%} of the processors busy. Measure again "
        "when they are free."
    )


def ms_text(ms: float) -> str:
    """Write milliseconds with two or three significant digits."""
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.1f} ms" if ms >= 1 else f"{ms:.2f} ms"


def resource_texts(resources: Resources | None) -> list[str]:
    """Write the resources of a measurement, one text for each that is known."""
    if resources is None:
        return []
    known = (
        (resources.cpu_share, "{:.0%} CPU"),
        (resources.memory_mb, "{:,.0f} MB"),
        (resources.gpu_share, "{:.0%} GPU"),
        (resources.gpu_memory_mb, "{:,.0f} MB GPU"),
        (resources.storage_mb_s, "{:,.1f} MB/s read"),
        (resources.others_share, "others {:.0%} CPU"),
    )
    return [text.format(value) for value, text in known if value is not None]


def ledger_texts(ledger: Mapping[str, Any] | None) -> list[str]:
    """Write the counts of the loader's samples; nothing for a record of an older version."""
    if ledger is None:
        return []
    counts = " ".join(f"{name}={ledger.get(name)}" for name in ("planned", "delivered", "replaced", "repaired"))
    codes = Counter(shown(str(line.get("code"))) for line in ledger.get("bad", []))
    why = f"; bad samples: {', '.join(f'{code} {count}' for code, count in codes.items())}" if codes else ""
    return [f"Samples in {ledger.get('epochs')} epochs: {counts}{why}."]


def repeat_command(settings: BenchSettings) -> str:
    """Write the command line of these settings; DATA stands for the folder or cache."""
    words = ["penstock", "bench", "DATA"]
    for field in dataclasses.fields(settings):
        value, option = getattr(settings, field.name), field.name.replace("_", "-")
        if field.name == "data_options":
            given = [
                (name, each)
                for name, of in value.items()
                for each in (of if name == "label" and isinstance(of, list) else [of])
            ]
            names = {"headers": "header"}
            words += [
                word
                for name, of in given
                for word in (f"--{names.get(name, name).replace('_', '-')}", _as_argument(of))
            ]
            continue
        if value == field.default and option not in ("device", "model"):  # their defaults depend on the machine
            continue
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [f"--{option}", "none" if value is None else str(value)]
    return shlex.join([*words, *["--thorough"] * (settings.budget is None)])


def _as_argument(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def rounds_text(record: BenchRecord) -> str:
    """Write how many rounds were measured, and for how long."""
    numbers = sorted({len(measured.rounds) for measured in record.measured}) or [0]
    many = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    return f"{many} alternating rounds of {record.settings.seconds:.2g}"
