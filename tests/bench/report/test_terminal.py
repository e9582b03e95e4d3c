"""The output of `penstock bench --verbose`: all figures of the page, whole at any width, and the summary."""

from __future__ import annotations

import io
import re

import pytest
from bench_documents import document, restored

from penstock.bench.report.page import about_text, record_sections
from penstock.bench.report.section_types import Section, Table
from penstock.bench.report.sections_summary import summary_section
from penstock.bench.report.terminal import plain_console, print_sections

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
    "Machine: processors 2, processor some CPU, GPU none",
    "a peer was left out: it has no files",
    "penstock bench DATA --backend torch --device cpu --model resnet18 --rounds 2 --thorough\n",
    "The model limits: 81 images/s.",
)


def printed(*sections: Section, width: int, terminal: bool = True) -> str:
    file = io.StringIO()
    print_sections(sections, plain_console(width=width, file=file, force_terminal=terminal, color_system=None))
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 200])
def test_everything_of_a_record_is_printed(width: int) -> None:
    record = restored(document())
    sections = [Section(title=about_text(record)), *record_sections(record), summary_section(record, whole=True)]
    made = printed(*sections, width=width)
    text = " ".join(made.split())
    wanted = WORDS if width > 80 else [words for words in WORDS if " backend loader " not in words]
    assert [words for words in wanted if words not in f"{text}\n{made}"] == []
    assert max(len(line) for line in made.splitlines() if not line.startswith("penstock bench")) <= width
    assert "…" not in made


def test_a_file_has_whole_lines() -> None:
    assert printed(Section(title="", notes=["word " * 40]), width=40, terminal=False).count("\n") == 1


def test_figures_stay_whole_on_a_narrow_screen() -> None:
    columns = [("name", "text"), ("lowest to highest round", "number"), ("why", "text")]
    row = ("a long name of some words", "12,345 to 12,678", "[red] \x1b[31m")
    made = printed(Section(title="", tables=[Table(caption="", columns=columns, rows=[row])]), width=24)
    assert re.search(r"12,345 to 12,678$", made, re.M)
    assert "a long name of some words: [red] \\x1b[31m" in " ".join(made.split())


def test_options_stay_in_one_line_if_they_fit_with_less_space() -> None:
    """It is 79 columns wide with one space between its columns, 81 with two."""
    columns = [("stored as", "text"), ("rate", "number"), ("range", "number")]
    row = ("--encoding raw --resize 256", "1" * 20, "2" * 30)
    made = printed(Section(title="", tables=[Table(caption="", columns=columns, rows=[row])]), width=80)
    assert " ".join(row) in made.splitlines()
