"""Text for a page: what cannot be shown or would turn its surroundings around is spelled out."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Collection, Mapping
from typing import Any

from penstock.bench.record.record import BenchSettings

# Control characters but the line feed, halves of characters, and marks that change the direction of what follows.
_UNSHOWABLE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def cleaned(value: Any) -> Any:
    """A JSON document whose strings, keys included, can be shown: other characters stand as Python writes them."""
    if isinstance(value, str):
        return _UNSHOWABLE.sub(lambda found: ascii(found[0])[1:-1], value)
    if isinstance(value, Mapping):
        return {cleaned(name): cleaned(each) for name, each in value.items()}
    return [cleaned(each) for each in value] if isinstance(value, (list, tuple)) else value


def rate_text(rate: float | None) -> str:
    """Images/s with at least two figures that count; nothing for None."""
    return "" if rate is None else f"{rate:.1f}" if 0 < rate < 10 else f"{rate:,.0f}"


def spread_text(rates: Collection[float]) -> str:
    """The lowest to the highest."""
    return f"{rate_text(min(rates))} to {rate_text(max(rates))}"


def ms_text(ms: float) -> str:
    """Milliseconds with two or three figures that count."""
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.1f} ms" if ms >= 1 else f"{ms:.2f} ms"


def repeat_command(settings: BenchSettings) -> str:
    """The command line that measures with these settings; DATA stands for the folder or cache."""
    words = ["penstock", "bench", "DATA"]
    for field in dataclasses.fields(settings):
        value, option = getattr(settings, field.name), field.name.replace("_", "-")
        if value == field.default and option != "device":  # which is the machine's best one by default
            continue
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [f"--{option}", "none" if value is None else str(value)]
    return shlex.join(words)
