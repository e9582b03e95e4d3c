"""Output of a build: nothing for a short build, plain lines without a terminal, a bar on a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from penstock.loaders.cache_build import build_progress
from penstock.loaders.cache_build.build_progress import BuildDisplay


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_short_build_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with BuildDisplay(100) as display:
        display.begin(b"x.h5", 100, 0)
        display.advance(100, 5000)
        display.stage("verifying")
    assert capsys.readouterr() == ("", "")


def test_progress_lines_without_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(build_progress.time, "monotonic", lambda: now[0])

    def lines(done: int, steps: int) -> list[str]:
        with BuildDisplay(1000) as display:
            display.begin(b"/a b/\xff.h5", 1000, done)
            for _ in range(steps):
                now[0] += 10
                display.advance(20, 3_000_000)
        out, err = capsys.readouterr()
        assert out == ""
        return err.splitlines()

    shown = lines(0, 10)
    assert len(shown) == 3
    assert shown[-1] == "penstock: building: 180 of 1,000 images, 27 MB written, 2 images/s, 7 min left"
    monkeypatch.setattr(build_progress, "LINE_EVERY_S", 0.0)
    shown = lines(900, 2)  # the existing ones do not count as speed
    assert "left" not in shown[1]  # no estimate from the first images
    assert shown[0] == r"penstock: continuing '/a b/\udcff.h5': 900 of 1,000 images are already there"
    assert "940 of 1,000 images, 6 MB written, 2 images/s" in shown[-1]


def test_a_lock_owner_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    display = BuildDisplay(1)
    display.waiting("process 1 on a")
    assert capsys.readouterr().err == ""
    for _ in range(20):
        display.waiting("process 1 on a")
        display.waiting("process 2 on b")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"penstock: waiting: process {n} on {h} is building it" for n, h in ((1, "a"), (2, "b"))]


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with BuildDisplay(1000) as display:
        display.begin(b"x.h5", 1000, 0)
        display.advance(250, 50_000_000)
        display.note("something [odd]")
    text = terminal.getvalue()
    assert "250/1000" in text
    assert "50 MB" in text
    assert "something [odd]" in text
