"""Ctrl-C at any moment of a build: the next one, in the same process too, takes the lock and goes on."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest
from interrupts import Interruption
from photo_folder import write_folder

from penstock.loaders.cache.format import Encoding
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.cache_build.lock import BuildLock
from penstock.loaders.sources.image_folder import ImageFolder

pytestmark = [
    pytest.mark.skipif(sys.version_info < (3, 11), reason="check points are found as Python 3.11 has them"),
    # Ctrl-C between open() and its owner leaves a file to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TRIALS = 40


def check_not_locked(dest: bytes) -> None:
    """The next builder does not wait; the lock file may lie there."""
    with BuildLock(dest + b".lock") as lock:
        lock.acquire(wait=False)
        lock.check()
    assert not os.path.exists(dest + b".lock")


def test_a_build_goes_on_after_ctrl_c_at_any_moment(tmp_path: Path) -> None:
    source = ImageFolder(write_folder(tmp_path / "photos", 4))

    def build(dest: Path, interruption: Interruption) -> bytes:
        interruption.run(lambda: build_cache(source, dest, encoding=Encoding(kind="raw", resize=24), workers=0))
        return dest.read_bytes()

    build(tmp_path / "first.h5", Interruption())
    whole = Interruption()
    expected = build(tmp_path / "whole.h5", whole)
    draw = random.Random(whole.points)
    for trial in range(TRIALS):
        dest, interruption = tmp_path / f"{trial}.h5", Interruption(draw.randrange(1, whole.points))
        with pytest.raises(KeyboardInterrupt):
            build(dest, interruption)
        check_not_locked(os.fsencode(dest))
        assert build(dest, Interruption()) == expected, interruption.struck
