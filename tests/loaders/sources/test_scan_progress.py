"""The display of a scan: on a terminal, after a second, and not otherwise."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from folder_trees import plant

from penstock.loaders.sources import image_folder
from penstock.loaders.sources.image_folder import ImageFolder


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stderr", "after_s", "shown"),
    [(Terminal(), 0.0, True), (Terminal(), 60.0, False), (io.StringIO(), 0.0, False), (None, 0.0, False)],
    ids=["a long scan", "a short one", "errors that go to a file", "no standard error"],
)
def test_a_long_scan_is_shown_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO | None, after_s: float, shown: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(image_folder, "SHOW_SCAN_AFTER_S", after_s)
    monkeypatch.setenv("TERM", "xterm")
    ImageFolder(plant(tmp_path / "[bold]", {"c/1.jpg": b""}), rescan=True)
    text = stderr.getvalue() if stderr else ""
    assert ("scanning" in text and "1 images" in text) if shown else text == ""
    assert not shown or "\x1b[2K" in text.rpartition("scanning")[2]  # nothing of it stays
