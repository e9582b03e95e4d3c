"""Hundreds of cache faults, run manually: `python tests/support/cache/cache_campaign.py cuts 300`, see CAMPAIGNS.

Stops at the first wrong outcome. The test suite runs a sample of each campaign.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.extend(str(folder) for folder in Path(__file__).resolve().parents[1].iterdir())  # as a script

from bit_rot import ENCODINGS, Flipper, build_odd_cache, write_odd_folder
from folder_trees import settle
from photo_folder import write_folder
from power_cut import cut_builds

from penstock.loaders.data.files.image_folder import ImageFolder


def cuts(folder: Path, count: int = 1000) -> Iterable[str]:
    """Cut the power before each call of a build that changes a file."""
    photos = settle(write_folder(folder / "photos", 12))  # the index is saved already: builds do not write it again
    for state, resumed in cut_builds(ImageFolder(photos), folder, count, random.Random(time.time_ns())):
        yield state + (", resumed" if resumed else "")


def flips(folder: Path, images: int = 10000, tables: int = 500) -> Iterable[str]:
    """Flip `images` single bits in stored images and `tables` elsewhere, for each kind of cache."""
    root, draw = write_odd_folder(folder / "odd"), random.Random(time.time_ns())
    for name, encoding in ENCODINGS.items():
        flipper = Flipper(build_odd_cache(root, folder / f"{name}.h5", encoding))
        for outcomes, what in (
            (flipper.payload_flips(images, draw), "images"),
            (flipper.table_flips(tables, draw), "everything else"),
        ):
            for outcome, times in outcomes.items():
                yield from [f"{name}, {what}: {outcome}"] * times


CAMPAIGNS: dict[str, Callable[..., Iterable[str]]] = {"cuts": cuts, "flips": flips}


def main() -> None:
    """Run the campaign named on the command line with its numbers; print the count of each outcome."""
    name, *numbers = sys.argv[1:] or ["?"]
    if name not in CAMPAIGNS:
        raise SystemExit(f"campaigns: {', '.join(CAMPAIGNS)}")
    started_s, outcomes = time.monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="penstock-campaign-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder + "/user"
        for outcome in CAMPAIGNS[name](Path(folder), *map(int, numbers)):
            outcomes[outcome] += 1
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:7,}  {outcome}")
    print(f"{outcomes.total():7,}  in {time.monotonic() - started_s:,.0f} s, none of them wrong")


if __name__ == "__main__":
    main()
