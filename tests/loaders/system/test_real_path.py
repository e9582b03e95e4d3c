"""Where a path leads that something is to be written to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.loaders.system.durable_file import ensure_writable
from penstock.loaders.system.real_path import real_path, real_place
from penstock.pipelines.errors import LoaderError

STRANGER = 12345


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
@pytest.mark.parametrize("name", ["direct.h5", "indirect.h5", "folder/x.h5"])
def test_a_link_that_another_user_planted_is_not_followed(tmp_path: Path, name: str) -> None:
    shared, mine = tmp_path / "shared", tmp_path / "mine"
    mine.mkdir()
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "direct.h5").symlink_to(mine / "x")
    (shared / "folder").symlink_to(mine)
    (shared / "indirect.h5").symlink_to("direct.h5")
    for find in (real_path, real_place):
        assert find(shared / name).startswith(os.fsencode(mine))  # my own links are followed
    for link in ("direct.h5", "folder"):
        os.lchown(shared / link, STRANGER, STRANGER)
    for find in (real_path, real_place, ensure_writable):
        with pytest.raises(LoaderError, match=r"E-ACCESS.*shared/(direct|folder).*another user"):
            find(shared / name)
    os.chown(shared, STRANGER, -1)  # whose folder it is may put links into it
    assert real_place(shared / name).startswith(os.fsencode(mine))


def test_circles_and_relative_paths_come_to_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "circle").symlink_to("circle")
    assert real_path("circle") == os.fsencode(tmp_path / "circle")
    assert real_place("x.h5") == os.fsencode(tmp_path / "x.h5")
    (tmp_path / "file").touch()
    with pytest.raises(LoaderError, match=r"E-MISUSE.*the folder '[^']*/file' does not exist"):
        real_place("file/deeper/x.h5")
