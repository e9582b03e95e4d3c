"""Draws the chart of the first page from a record of loaders on the same work, as SVG for light and dark pages.

python tests/studies/peers_chart.py bench/results/peers-native-2-cores.json docs/images
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

BARS = (  # label, name in the record, whether it is Penstock's
    ("Penstock, raw cache 256 px", "penstock:raw-256L", True),
    ("FFCV, raw 256 px", "ffcv:raw-256", False),
    ("Penstock, lossless cache", "penstock:cache-u8", True),
    ("Penstock, files", "penstock:files-u8", True),
    ("tf.data, files", "tfdata:u8", False),
    ("DALI on the CPU, files", "dali:u8", False),
    ("torch + Pillow, files", "torch_pil:u8", False),
)
COLOURS = {"light": ("#24292f", "#57606a", "#d9480f", "#adb5bd"), "dark": ("#e6edf3", "#9198a1", "#ff8a4c", "#5c6570")}
WIDTH, ROW, LEFT, RIGHT = 540, 30, 235, 65  # narrow, so that its text is readable on a phone


def draw(record: dict[str, Any], theme: str) -> str:
    """Return the SVG of a record; bars are proportional to images per second."""
    ink, faint, ours, theirs = COLOURS[theme]
    rates = [record["beside"][name]["images_per_s"] for _, name, _ in BARS]
    height = 46 + ROW * len(BARS) + 42
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="14">',
        "<title>Images per second on two CPU cores: "
        + "; ".join(f"{label} {rate:,.0f}" for (label, _, _), rate in zip(BARS, rates, strict=True))
        + "</title>",
        f'<text x="0" y="20" fill="{ink}" font-size="16" font-weight="600">Images per second, two CPU cores</text>',
    ]
    for row, ((label, _, is_ours), rate) in enumerate(zip(BARS, rates, strict=True)):
        top, width = 36 + row * ROW, (WIDTH - LEFT - RIGHT) * rate / max(rates)
        middle, weight = top + 15, "600" if is_ours else "400"
        parts += [
            f'<text x="{LEFT - 10}" y="{middle}" fill="{ink}" text-anchor="end" font-weight="{weight}">{label}</text>',
            f'<rect x="{LEFT}" y="{top}" width="{width:.1f}" height="20" rx="2" fill="{ours if is_ours else theirs}"/>',
            f'<text x="{LEFT + width + 8:.1f}" y="{middle}" fill="{ink}" font-weight="{weight}">{rate:,.0f}</text>',
        ]
    machine = record["machine"].partition(",")[0]
    notes = (f"{machine}. The same 200 photos, random crops of 224,", "uint8 batches of 64; median of three rounds.")
    parts += [
        f'<text x="0" y="{height - 24 + 17 * row}" fill="{faint}" font-size="12">{note}</text>'
        for row, note in enumerate(notes)
    ]
    return "\n".join([*parts, "</svg>\n"])


def main(record: str, folder: str) -> None:
    """Write peers-light.svg and peers-dark.svg."""
    for theme in COLOURS:
        text = draw(json.loads(Path(record).read_text("utf-8")), theme)
        Path(folder, f"peers-{theme}.svg").write_text(text, "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
