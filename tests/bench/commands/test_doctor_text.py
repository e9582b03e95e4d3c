"""How `penstock doctor` prints a finding."""

from __future__ import annotations

import re
import sys

import pytest

from penstock.bench.checks.finding import Finding
from penstock.bench.commands.doctor import print_finding


@pytest.mark.parametrize("columns", [80, 200])
def test_lines_are_broken_between_words_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    found = "48,733 images/s from the page cache (5,044 MB/s), 3,421 from storage (354 MB/s), one thread"
    print_finding(
        Finding("data: reading", "warn", found, "copy the data to a local disk, or penstock cache build DATA")
    )
    lines = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out).splitlines()  # without its colour
    assert max(map(len, lines)) <= columns
    words = " ".join(" ".join(lines).split())
    assert found in words
    assert "-> copy the data to a local disk, or penstock cache build DATA" in words
    assert {" ".join(line[:37].split()) for line in lines} == {"warn data: reading", ""}


def test_a_file_has_whole_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_finding(Finding("data", "ok", "word " * 40))
    assert len(capsys.readouterr().out.splitlines()) == 1
