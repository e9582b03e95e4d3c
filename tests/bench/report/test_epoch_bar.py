"""The progress bar of a training epoch: position, rate, and removal before a line is printed."""

from __future__ import annotations

import io
import re

import pytest

from penstock.bench.report.epoch_bar import EpochBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("shown", "width"), [(True, 80), (True, 60), (False, 80)])
def test_an_epoch_has_a_bar_with_rate_and_time_left(monkeypatch: pytest.MonkeyPatch, shown: bool, width: int) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    with EpochBar(3, shown=shown) as bar:
        for done in range(1, 6):
            bar.step(1, done, 10, 64)
        bar.end()
        seen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
        bar.step(2, 1, 10, 64)
    again = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    last = seen.replace("\n", "\r").split("\r")
    lines = [line for line in last if "epoch 2 of 3" in line]
    assert bool(lines) == shown
    assert ("epoch 3 of 3" in again) == shown
    if shown:
        assert re.search(r"epoch 2 of 3 .* 50% [\d,]+ images/s [\d:-]+", lines[-1])
        assert max(map(len, lines)) <= width
