"""The display of a scan: on a terminal, after a second, and not otherwise."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from folder_trees import plant

from penstock.loaders.sources import scan_progress
from penstock.loaders.sources.image_folder import ImageFolder


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def show(stderr: io.StringIO | None, after_s: float) -> str:
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setattr(scan_progress, "SHOW_AFTER_S", after_s)
        monkeypatch.setenv("TERM", "xterm")
        ImageFolder(plant(tmp_path / "[bold]", {"c/1.jpg": b""}), rescan=True)
        return stderr.getvalue() if stderr else ""

    return show


def test_a_long_scan_is_shown_on_a_terminal(shown) -> None:
    text = shown(Terminal(), 0.0)
    assert "scanning" in text
    assert "1 images" in text


def test_a_short_scan_is_not(shown) -> None:
    assert shown(Terminal(), 60.0) == ""


def test_nor_one_whose_errors_go_to_a_file(shown) -> None:
    assert shown(io.StringIO(), 0.0) == ""


def test_nor_one_without_standard_error(shown) -> None:
    assert shown(None, 0.0) == ""
