"""Cache builds by command, and checks of the file after any end of a build."""

from __future__ import annotations

import os
import re
from pathlib import Path

from forked_commands import Command, Commands

from penstock.loaders.cache_build.unfinished import Block, read_journal
from penstock.loaders.cache_build.verify import verify_cache
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.pipelines.errors import LoaderError


def build(commands: Commands, source: Path, dest: Path, workers: int, **conditions: object) -> Command:
    """Start a build."""
    return commands.start("cache", "build", source, dest, "--workers", workers, **conditions)


def whole_cache(commands: Commands, source: Path, folder: Path, *options: object) -> bytes:
    """Return the bytes of a cache of `source`, built in `folder` without a fault."""
    code, command = commands.run("cache", "build", source, folder / "x.h5", "--workers", 0, *options)
    assert code == 0, command.errors
    return (folder / "x.h5").read_bytes()


def stored_images(dest: Path) -> int:
    """Return the number of images in the journal of an unfinished cache."""
    counts = [0]
    for folder in dest.parent.glob(dest.name + ".tmp.*"):
        _key, *lines = [*read_journal(os.fsencode(folder)), None]
        counts.append(sum(len(Block.from_text(line[0]).records) for line in lines if line is not None))
    return max(counts)


def state_of(dest: Path, whole: bytes, earlier: bytes = b"") -> str:
    """Return "absent", "whole" or "earlier". A file must equal one of the two byte for byte, open and verify."""
    if not os.path.lexists(dest):
        assert not earlier, f"the earlier cache at {dest} is gone"
        return "absent"
    content = dest.read_bytes()
    assert content in (whole, earlier), f"{dest} is not whole{_described(dest)}"
    report = verify_cache(open_cache(dest), workers=1)
    assert report.sound, report.describe()
    return "whole" if content == whole else "earlier"


def _described(dest: Path) -> str:
    try:
        about = open_cache(dest).about[0]
    except LoaderError as error:
        return f": {error}"
    return f", though it opens: {about.counts}, {about.kept}"


def next_build(commands: Commands, source: Path, dest: Path, whole: bytes, workers: int = 0) -> int:
    """Run the next build, which must succeed and leave only the file; return the number of images it reused."""
    is_complete = dest.exists() and dest.read_bytes() == whole
    code, command = commands.run("cache", "build", source, dest, "--workers", workers)
    assert code == 0, command.errors
    assert ("nothing to do" in command.output) == is_complete
    assert state_of(dest, whole) == "whole"
    assert os.listdir(dest.parent) == [dest.name]
    assert commands.shared_segments() == []
    reused = re.search(r"; ([\d,]+) came from", command.output)
    return int(reused[1].replace(",", "")) if reused else 0
