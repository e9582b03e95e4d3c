"""Comparison of versions: same, changed, unknown."""

from __future__ import annotations

from penstock.loaders.data.samples.version import MISSING, Container, Version


def test_an_unknown_version_is_never_the_same() -> None:
    unknown, known = Version.of_object(None, None, 7), Version.of_object("tag", None, 7)
    assert not unknown.is_same(unknown)
    assert known.is_same(Version.of_object('W/"tag"', None, 9))
    for version in (unknown, known, MISSING):
        assert Version.of_stored_object(version.number) == version
    assert Container(b"/none", 0, MISSING).is_unchanged()
