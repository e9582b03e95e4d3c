"""The progress bar: only on a terminal, erased at the end, with text printed unchanged."""

from __future__ import annotations

import io
import sys

import pytest

from penstock.loaders.system.progress_bar import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def use(bar: ProgressBar) -> None:
    with bar:
        bar.show(20, 40, "[red]counting")
        bar.advance(10)
        bar.print("a [bold] line")


def test_the_bar_is_shown_on_a_terminal_and_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    use(ProgressBar("starting"))
    with ProgressBar("copying", 4) as bar:
        bar.show(1, details="7 MB")
    text = terminal.getvalue()
    assert "[red]counting" in text
    assert "75%" in text
    assert "7 MB" in text
    assert "a [bold] line" in text
    assert text.rstrip("\n").endswith("\x1b[2K") or "\x1b[2K" in text.rpartition("copying")[2]  # nothing of it remains


@pytest.mark.parametrize(
    ("stderr", "after_s"), [(io.StringIO(), 0.0), (Terminal(), 60.0), (None, 0.0)], ids=["a file", "too soon", "none"]
)
def test_without_a_terminal_only_lines_are_printed(
    monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO | None, after_s: float
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    use(ProgressBar("starting", show_after_s=after_s))
    assert stderr is None or stderr.getvalue() == "a [bold] line\n"
