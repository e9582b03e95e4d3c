"""The live display of a run and its final screen."""

from __future__ import annotations

import io
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from bench_records import of_cpu, record
from rich.console import Console

from penstock.bench.commands.bench import _save_choice
from penstock.bench.record.bench_record import BenchRecord, Measured
from penstock.bench.report.live_table import LiveTable
from penstock.bench.report.page import page
from penstock.bench.report.sections_summary import split_advice, summary_section
from penstock.bench.report.terminal import print_sections
from penstock.bench.verdict.judge import judge


def judged(made: BenchRecord) -> BenchRecord:
    return replace(made, verdict=judge(made, "a/folder/whose/name/is/long enough/to/fill/a/line/of/its/own/photos"))


def screen(made: BenchRecord, width: int = 80) -> list[str]:
    file = io.StringIO()
    print_sections([summary_section(made)], Console(width=width, file=file, force_terminal=True, color_system=None))
    return file.getvalue().splitlines()


FULL = record(
    loader=2000,
    baseline=1000,
    decode=1050,
    cache=1365,
    turbojpeg=1500,
    model=5000,
    both=1990,
    cold=10,
    bf16=9000,
    usage={"loader": of_cpu(0.75, memory_mb=1234.0)},
)


def test_the_end_of_a_run_fits_on_one_screen() -> None:
    made = judged(replace(FULL, notes=("not measured in 120 s (--budget): " + "much " * 40,)))
    assert made.verdict is not None
    lines = screen(made)
    assert len(lines) <= 24
    call = next(number for number, line in enumerate(lines) if line.startswith("from penstock"))
    assert max(map(len, lines[:call])) <= 80
    assert lines[call:] == made.verdict.call.splitlines()  # unchanged, for pasting
    text = " ".join(" ".join(lines).split())
    for words in (
        made.verdict.sentence,
        "2,000 1,800 to 2,400",
        "1,000 900 to 1,200 2.00 x (2.0-2.0)",
        "loader = create_loader(",
        "--verbose",
        "not meas",
    ):
        assert words in text, words


@pytest.mark.parametrize("width", [60, 80, 200])
def test_advice_and_ratios_are_whole_on_any_screen(width: int) -> None:
    made = judged(FULL)
    advice = replace(split_advice(made)[0][0], what="--workers 8, " * 12 + "--requests 256")
    assert made.verdict is not None
    made = replace(made, verdict=replace(made.verdict, advice=(advice,)))
    assert made.verdict is not None
    whole = "\n".join(screen(made, width))
    lines = whole.removesuffix(made.verdict.call.rstrip()).splitlines()
    assert max(map(len, lines)) <= width
    assert f"Faster: {advice.what}: 3,000 images/s predicted" in " ".join(" ".join(lines).split())
    assert "…" not in "".join(lines)


def test_ratios_are_of_rounds_that_measured_both() -> None:
    """A loader's rounds before the baseline's first one do not count: the machine's speed may have differed."""
    loader = Measured.of("penstock", "loader", [50.0, 300.0, 310.0, 90.0], turns=(0, 1, 2, 4))
    baseline = Measured.of("torch", "baseline", [100.0, 100.0, 70.0], turns=(1, 2, 3))
    assert replace(FULL, measured=(loader, baseline)).ratios_to(baseline) == [3.0, 3.1]
    assert replace(FULL, measured=(baseline,)).ratios_to(baseline) == []


def test_a_disturbed_run_warns_against_keeping_its_settings() -> None:
    words = "Do not keep the settings of this run: other programs kept 82% of the processors busy."
    hindered = record(loader=2000, decode=1050, usage={"loader": of_cpu(0.1, others_share=0.82)})
    assert words in " ".join(" ".join(screen(judged(hindered))).split())
    assert words in page(judged(hindered))
    assert "Do not keep" not in " ".join(screen(judged(FULL)))


@pytest.mark.parametrize(("others", "is_saved"), [(0.82, False), (0.1, True), (None, True)])
def test_a_disturbed_run_does_not_save_a_profile(
    others: float | None, is_saved: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "profile.json"
    hindered = record(loader=2000, decode=1050, usage={"loader": of_cpu(0.1, others_share=others)})  # type: ignore[arg-type]
    _save_choice(replace(hindered, environment={"cpus": 2}), str(place))
    assert place.exists() == is_saved
    printed = capsys.readouterr().out
    assert ("not saved as profile" in printed, "measure again when they are free" in printed) == (
        not is_saved,
        not is_saved,
    )
    assert ("backend='auto'" in printed) == is_saved


def test_advice_that_only_saves_processors_is_listed_separately() -> None:
    faster, sparing = split_advice(judged(record(loader=2000, decode=1050, cache=1365)))
    assert [each.images_per_s is None or each.images_per_s > 2000 for each in faster]
    assert all((each.images_per_s or 0) <= 2000 for each in sparing)
    limited = judged(record(workers=8, loader=2000, model=300, both=299, decode=1050))
    assert split_advice(limited)[1] != []
    assert any(line.startswith("Saves processors:") for line in screen(limited))
    assert not any(line.startswith("Saves processors:") for line in screen(judged(record(loader=2000, decode=1050))))


def shown_live(*, terminal: bool, fails: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=80, height=24, color_system=None)

    def run() -> None:
        with LiveTable(lambda: 42.4, console) as table:
            table.begin(0, 0, "searching: torch")
            table.measured("search", "torch, workers 2", [650.0])
            assert ("650 images/s" in file.getvalue()) == (not terminal)  # at once
            table.measured("loader", "penstock, torch\x1b[31m backend", [640.0, 660.0, 700.0])
            if fails:
                raise KeyboardInterrupt

    if fails:
        with pytest.raises(KeyboardInterrupt):
            run()
    else:
        run()
    return file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_live_table_shows_status_and_latest_rows_at_the_top(width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO(), force_terminal=True)
    table = LiveTable(lambda: 42.4, console)
    table.measured("loader", "penstock, torch backend", [640.0, 660.0, 700.0])
    for number in range(30):
        table.measured("search", f"torch, native, workers {number}, prefetch 3", [12345.0, 12678.0])
    table.begin(3, 10, "what takes " + "very " * 50 + "long")
    console.print(table._render())
    status, *lines = console.export_text().splitlines()
    assert max(map(len, [status, *lines])) <= width
    assert status.startswith("42 s left, loader 660 images/s, what takes very")
    text = " ".join(" ".join(lines).split())
    assert text.count("12,345 to 12,678") == 30
    if width > 60:  # else names are broken
        assert re.findall(r"workers (\d+)", text) == [str(number) for number in reversed(range(30))]
    assert "…" not in text


def test_without_a_terminal_each_finished_measurement_is_a_line() -> None:
    lines = shown_live(terminal=False).splitlines()
    assert lines[0] == "search  torch, workers 2  650 images/s    42 s left"
    assert lines[1] == "loader  penstock, torch\\x1b[31m backend  660 images/s  640 to 700  42 s left"


def test_the_table_stays_on_a_terminal_only_if_the_run_is_aborted() -> None:
    whole, broken = shown_live(terminal=True), shown_live(terminal=True, fails=True)
    for words in ("660", "640 to 700", "42 s left, loader 660 images/s"):
        assert words in broken
    assert "42 s left" in whole
    assert whole.endswith("\x1b[1A\x1b[2K")


def test_without_a_terminal_a_line_is_printed_after_silence() -> None:
    file = io.StringIO()
    with LiveTable(lambda: 42.4, Console(file=file, force_terminal=False, width=80), silence=0.05) as table:
        table.begin(0, 0, "reading from a slow disk")
        deadline = time.monotonic() + 30
        while "slow disk" not in file.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "... reading from a slow disk  42 s left" in file.getvalue().splitlines()
