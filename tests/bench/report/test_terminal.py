"""What `penstock bench --verbose` prints: every figure of the page, whole at any width, and the summary."""

from __future__ import annotations

import re

import pytest
from bench_documents import document, restored

from penstock.bench.report.console import plain_console, print_table
from penstock.bench.report.section_types import Table
from penstock.bench.report.terminal import print_record

WORDS = (
    "200 images, 4 classes. 2 × some CPU. Backend torch, 2 workers, decoder simplejpeg",
    "--workers 4 loader 1,700 3,000 1.76 × 2,720 1.60 ×",  # predicted next to measured
    "--workers 4: there are processors left",
    "more memory: not tried: there is none",
    "penstock, torch backend loader 1,779 1,690 to 1,868 36.0 ms",
    "penstock, torch backend: 75% CPU, 812 MB",
    "penstock + resnet18: 25% of the step waits for data",
    "decode: 26.7 ms; resize: 6.7 ms",
    "hdf5 of the cache 2,400 1.8 850 MB",
    "dali of the files: DALI is not installed",
    "--resize 400 --quality 90 8.0 MB 3,000 2,700 to 3,300 1.68 × 34.6 dB",
    "Machine: processors 2, processor some CPU, GPU none",
    "a peer was left out: it has no files",
    "penstock bench DATA --backend torch --device cpu --model resnet18 --rounds 2 --thorough\n",
    "The model limits: 81 images/s.",
)


@pytest.mark.parametrize("width", [80, 200])
def test_everything_of_a_record_is_printed(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_record(restored(document()))
    printed = capsys.readouterr().out
    text = " ".join(printed.split())
    wanted = WORDS if width > 80 else [words for words in WORDS if " backend loader " not in words]
    assert [words for words in wanted if words not in f"{text}\n{printed}"] == []
    assert max(len(line) for line in printed.splitlines() if not line.startswith("penstock bench")) <= width
    assert "…" not in printed


def test_figures_stay_whole_on_a_narrow_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    columns = [("name", "text"), ("lowest to highest round", "number"), ("why", "text")]
    row = ("a long name of some words", "12,345 to 12,678", "[red] \x1b[31m")
    print_table(Table(caption="", columns=columns, rows=[row]), plain_console())
    printed = capsys.readouterr().out
    assert re.search(r"12,345 to 12,678$", printed, re.M)
    assert "a long name of some words: [red] \\x1b[31m" in " ".join(printed.split())


def test_options_stay_in_one_line_where_less_space_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    """It is 79 columns wide with one space between its columns, 81 with two."""
    columns = [("stored as", "text"), ("rate", "number"), ("range", "number")]
    row = ("--encoding raw --resize 256", "1" * 20, "2" * 30)
    print_table(Table(caption="", columns=columns, rows=[row]), plain_console(width=80))
    assert " ".join(row) in capsys.readouterr().out.splitlines()
