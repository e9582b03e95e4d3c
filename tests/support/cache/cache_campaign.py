"""Faults of a cache by the hundred, by hand: `python tests/support/cache/cache_campaign.py kills 300`, see CAMPAIGNS.

Ends with the first thing that is not as it must be. The suite runs a sample of each.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

sys.path.extend(str(folder) for folder in Path(__file__).resolve().parents[1].iterdir())  # as a script

import pytest
from bit_rot import ENCODINGS, Flipper, build_odd_cache, write_odd_folder
from cache_kills import VICTIMS, build, killed_build, state_of, undisturbed
from command_line import own_shm
from forked_commands import Commands
from photo_folder import photo, write_folder
from power_cut import DiskRecorder, after_a_cut

from penstock.loaders.cache_build import unfinished as build_folder
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.cache_encode import chunks as build_chunks
from penstock.loaders.sources.image_folder import ImageFolder

_OTHER = ("--quality", 50)


def kills(folder: Path, count: int = 300) -> Iterable[str]:
    """Builders without workers, and of two: killed alone, with all of their group, or one worker."""
    photos = _photos(folder, 40)
    for number in range(12):  # builds of some seconds, where kills meet larger images
        (photos / f"class{number % 3}" / f"large{number}.jpg").write_bytes(photo(number, large=True))
    with Commands(folder / "commands", own_shm()) as commands:
        known = undisturbed(commands, photos, _new(folder / "undisturbed"), 0)
        earlier = _built(commands, photos, folder / "earlier", *_OTHER)
        draw = random.Random(time.time_ns())
        for number in range(count):
            victim = VICTIMS[number % len(VICTIMS)]
            workers = 2 if victim == "worker" or number % 2 else 0
            place = folder / str(number)
            before = earlier if draw.random() < 0.4 else b""
            trial = killed_build(commands, photos, place, replace(known, workers=workers), victim, draw, earlier=before)
            shutil.rmtree(place)
            yield f"{workers} workers, {victim} killed: exit code {trial.code}, {trial.state}" + (
                ", resumed" if trial.resumed else ""
            )


def cuts(folder: Path, count: int = 1000) -> Iterable[str]:
    """Power cuts before each call of a build that changes a file."""
    source, place = ImageFolder(_photos(folder, 12)), folder / "recorded"
    place.mkdir()
    build_chunks.FIRST_CHUNK_SAMPLES = build_chunks.MAX_CHUNK_SAMPLES = 2
    build_folder.SYNC_BYTES = 2500
    with pytest.MonkeyPatch.context() as patch:
        recorder = DiskRecorder(place, patch)
        build_cache(source, place / "x.h5", workers=0)
        recorder.end()
    whole, draw = (place / "x.h5").read_bytes(), random.Random(time.time_ns())
    for number in range(count):
        dest = _new(folder / "cut") / "x.h5"
        after_a_cut(recorder.moments[number % len(recorder.moments)], place, dest.parent, draw)
        state = state_of(dest, whole)
        file = build_cache(source, dest, workers=0).files[0]
        assert dest.read_bytes() == whole
        assert os.listdir(dest.parent) == ["x.h5"]
        shutil.rmtree(dest.parent)
        yield state + (", resumed" if file.resumed else "")


def builders(folder: Path, count: int = 50) -> Iterable[str]:
    """Two to four builders at once, one of them with other settings, one of them killed while they build."""
    photos, draw = _photos(folder, 40), random.Random(time.time_ns())
    with Commands(folder / "commands", own_shm()) as commands:
        whole = _built(commands, photos, folder / "whole")
        other = _built(commands, photos, folder / "other", *_OTHER)
        for number in range(count):
            dest = _new(folder / "met") / "x.h5"
            options = {"small_steps": True, "hold": True}
            started = [build(commands, photos, dest, draw.choice((0, 0, 1)), **options) for _ in range(2 + number % 3)]
            if with_other := number % 4 == 3:
                started.append(commands.start("cache", "build", photos, dest, "--workers", 0, *_OTHER, **options))
            commands.release(*started)
            if kill := number % 2:
                time.sleep(draw.uniform(0, 0.5))
                started[0].kill(group=draw.random() < 0.5)
            codes = [command.wait() for command in started]
            assert set(codes[kill:]) == {0}, [command.errors for command in started]
            built = sum(code == 0 and "nothing to do" not in c.output for code, c in zip(codes, started, strict=True))
            state = state_of(dest, whole, other if with_other else b"")
            assert built >= 1 if codes[0] == 0 else True
            assert os.listdir(dest.parent) == ["x.h5"]
            shutil.rmtree(dest.parent)
            yield f"{len(started)} builders{', other settings' * with_other}{', one killed' * kill}: {state}"


def flips(folder: Path, images: int = 10000, tables: int = 500) -> Iterable[str]:
    """Single bits of the stored images, and of everything else; so many of each kind of cache."""
    root, draw = write_odd_folder(folder / "odd"), random.Random(time.time_ns())
    for name, encoding in ENCODINGS.items():
        flipper = Flipper(build_odd_cache(root, folder / f"{name}.h5", encoding))
        for outcomes, what in (
            (flipper.payload_flips(images, draw), "images"),
            (flipper.table_flips(tables, draw), "everything else"),
        ):
            for outcome, times in outcomes.items():
                yield from [f"{name}, {what}: {outcome}"] * times


CAMPAIGNS: dict[str, Callable[..., Iterable[str]]] = {
    "kills": kills,
    "cuts": cuts,
    "builders": builders,
    "flips": flips,
}


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _photos(folder: Path, count: int) -> Path:
    root = write_folder(folder / "photos", count)
    for path in [*root.rglob("*"), root]:
        os.utime(path, (1e9, 1e9))  # old enough for the folder's index to be kept: no build writes it again
    return root


def _built(commands: Commands, source: Path, folder: Path, *options: object) -> bytes:
    code, command = commands.run("cache", "build", source, _new(folder) / "x.h5", "--workers", 0, *options)
    assert code == 0, command.errors
    return (folder / "x.h5").read_bytes()


def main() -> None:
    """Run the campaign that the command line names, with its numbers; print how often each outcome was."""
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
