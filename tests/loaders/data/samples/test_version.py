"""Versions: what is the same, what has changed, and what cannot be known."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.loaders.data.samples.version import MISSING, Container, Version


def test_an_unknown_version_is_never_the_same() -> None:
    unknown, known = Version.of_object(None, None, 7), Version.of_object("tag", None, 7)
    assert not unknown.is_same(unknown)
    assert known.is_same(Version.of_object('W/"tag"', None, 9))
    for version in (unknown, known, MISSING):
        assert Version.of_stored_object(version.number) == version


def test_a_file_whose_time_was_put_back_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one")
    then = Container.of_file(os.fsencode(path), path.stat())
    assert then.is_unchanged()
    path.write_bytes(b"two")
    os.utime(path, ns=(then.version.number, then.version.number))
    assert not then.is_unchanged()
    path.unlink()
    assert not then.is_unchanged()
    assert Container(then.name, 0, MISSING).is_unchanged()
