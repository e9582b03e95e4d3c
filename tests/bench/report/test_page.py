"""The report page: one well-formed file with all figures of a record, for any strings in the record."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from bench_documents import SIMPLEJPEG, document, restored
from command_line import penstock_here

from penstock.bench.record.settings import BenchSettings
from penstock.bench.report.charts import Bar, ticks
from penstock.bench.report.page import make_page, page
from penstock.bench.report.sections_choices import changes_section, sweep_section
from penstock.bench.report.sections_measured import rates_chart, step_lanes, step_section
from penstock.bench.report.text import repeat_command

RESULTS = Path(__file__).resolve().parents[3] / "bench" / "results"
CHARTS = 5  # rates, lanes, over time alone and with the model, and candidates


class Page:
    """The texts, table rows and charts of a page, parsed as XML to check that each element is closed in order."""

    def __init__(self, made: str) -> None:
        body = re.sub(r"(<meta[^>]*)>", r"\1/>", made.removeprefix("<!DOCTYPE html>"))
        self.elements = list(ElementTree.fromstring(body).iter())
        self.text = " ".join(
            " ".join(text for part in self.elements for text in (part.text, part.tail) if text).split()
        )
        self.rows = [["".join(cell.itertext()) for cell in row] for row in self.elements if row.tag == "tr"]
        self.charts = [part.get("aria-label", "") for part in self.elements if part.get("role") == "img"]

    def row(self, *heads: str) -> list[str]:
        """The only row that begins with `heads`."""
        (found,) = [row for row in self.rows if tuple(row[: len(heads)]) == heads]
        return found


@pytest.fixture(scope="module")
def made() -> str:
    return page(restored(document()))


def test_page_is_well_formed_and_fetches_nothing(made: str) -> None:
    read = Page(made)
    assert made.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert not {"script", "link", "img", "iframe", "object", "image"} & {part.tag for part in read.elements}
    names = {name for part in read.elements for name in part.attrib}
    assert not {name for name in names if name in ("src", "srcset", "href") or name.startswith("on")}
    assert not re.search(r"https?:|//[a-z]|@import|url\(", made)
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in [
        part.get("content") for part in read.elements
    ]
    assert len(read.charts) == CHARTS
    assert made.count("<polyline") == 4 * 2  # three loaders alone, one with the model, in two rounds


def test_every_measurement_is_in_the_table_and_in_the_chart(made: str) -> None:
    read = Page(made)
    chart = made[made.index("Reached rates</p>") : made.index("<figcaption>")]
    for each in document()["measured"]:
        name = each["name"] + f", {each['note']}" * bool(each["note"])
        rate = f"{each['images_per_s']:,.0f}"
        row = next(row for row in read.rows if row[0] == name and rate in row)
        assert row[3] == f"{each['low']:,.0f} to {each['high']:,.0f}"
        assert f"{name}: {rate}" in read.charts[0]
        assert f'title="{name}: {rate}"' in chart
        assert re.search(rf">{rate}</b>", chart), each
    assert "25% of the step waits for data" in read.row("penstock + resnet18", "loader + model")[5]
    assert read.row("penstock, torch backend", "loader")[4:] == ["36.0 ms", "75% CPU, 812 MB"]


def test_the_limit_and_the_changes_are_on_the_page(made: str) -> None:
    read = Page(made)
    for words in ("1,779 images/s from the loader; the limit is the model", "a peer was left out"):
        assert words in read.text, words
    for row in (
        ["--workers 4", "loader", "1,700", "3,000", "1.76 ×", "2,720", "1.60 ×", "there are processors left"],
        ["penstock, torch backend", "1,690, 1,868", "1,601", "1,957"],
    ):
        assert row in read.rows
    assert read.row("more memory")[-1] == "not tried: there is none"
    assert read.row("hdf5 of the cache")[1:4] == ["2,400", "1.8", "850 MB"]
    assert read.row("dali of the files")[-1] == "DALI is not installed"


def test_advice_that_was_not_tried_has_no_columns_for_it() -> None:
    (table,) = changes_section(restored({**document(), "applied": []})).tables
    change = ("--workers 4", "loader", "1,779", "3,558", "2.00 ×", "there are processors left")
    assert (len(table.columns), table.rows) == (6, [change])
    verdict = {**document()["verdict"], "advice": []}
    nothing = changes_section(restored({**document(), "applied": [], "verdict": verdict}))
    assert (nothing.tables, "no change gains anything" in nothing.texts[0]) == ((), True)


HOSTILE = (
    '#010101 id="x" </b><script>alert(1)</script><img src=x onerror="a()"> $\\frac{1}{2}$ {{ 7*7 }} &'
    " \u202egnp.exe\x00\ud800\t"
)


def test_strings_of_the_user_are_escaped_everywhere() -> None:
    changed = document()
    changed["data"]["summary"] = changed["notes"][0] = changed["environment"]["cpu"] = HOSTILE
    changed["environment"]["packages"][HOSTILE] = HOSTILE
    changed["verdict"] = dict.fromkeys(("limit", "sentence", "call"), HOSTILE) | {
        "advice": [{"what": HOSTILE, "images_per_s": 5.0, "why": HOSTILE}]
    }
    changed["applied"][0]["what"] = HOSTILE
    for each in changed["measured"]:
        each["name"] = f"{each['name']} {HOSTILE}"
    for each in changed["candidates"]:
        each["name"] = HOSTILE
    made = page(restored(changed))
    made.encode("utf-8")
    read = Page(made)
    assert not {"script", "img"} & {part.tag for part in read.elements}
    assert not [part for part in read.elements if "id" in part.attrib]
    assert not re.search("[\x00\u202e\ud800\t]", made)
    escaped = HOSTILE[: HOSTILE.index("\u202e")] + "\\u202egnp.exe\\x00\\ud800\\t"
    assert read.text.count(escaped) > 45  # in tables and in charts
    assert [escaped in text for text in read.charts] == [
        True,
        False,
        *[True] * 3,
    ]  # the step's parts are not named by the user


def records() -> dict[str, tuple[dict[str, Any], int]]:
    """Name -> (record, number of charts) of old and new records of benchmark runs."""
    runs = json.loads((RESULTS / "bottlenecks-2-cores.json").read_text())["bottlenecks"]
    found = {f"bottleneck {number}": (each["record"], 4 if number == 3 else 3) for number, each in enumerate(runs)}
    for path in sorted(RESULTS.glob("*.json")):
        document = json.loads(path.read_text())
        if "measured" in document and "verdict" in document:
            found[path.stem] = (document, 2 + any(each.get("over_time") for each in document["measured"]))
    return found


RECORDS = records()


@pytest.mark.parametrize("name", RECORDS)
def test_every_record_in_the_repository_gives_a_page(name: str) -> None:
    document, charts = RECORDS[name]
    read = Page(page(restored(document)))
    assert len(read.charts) == charts
    if name.startswith("cpu-2-photos"):  # from an old version
        for words in ("a version without advice", "that did not store it"):
            assert words in read.text, words


# ---- what is drawn ----


def lanes(
    settings: dict[str, Any] | None = None, loader: dict[str, Any] | None = None, **changes: Any
) -> dict[str, dict[str, float]]:
    """Lane -> stage -> milliseconds."""
    made = {**document(), **changes}
    made["settings"] |= settings or {}
    made["loader"] |= loader or {}
    found = step_lanes(restored(made))
    return {lane: {bar.label: round(bar.end, 3) for bar in stages} for lane, stages in found.items()}


def test_lanes_run_in_parallel_and_workers_share_a_batch() -> None:
    assert lanes() == {
        "2 workers at once, on batch n + 2": {"read": 0.842, "decode": 26.667, "resize": 6.667},  # of 64 images
        "Feed, on batch n + 1": {"normalise": 4.571},
        "Model, on batch n": {"resnet18: forward, backward, update": 790.123},
    }
    section = step_section(restored(document()))
    drawn = section.figures[0].chart.rows  # type: ignore[union-attr]
    headings = [row for row in drawn if isinstance(row, str)]
    assert (headings[0], headings[-1]) == ("2 workers at once, on batch n + 2: 34.2 ms in all", "Measured in the run")
    bars = {row.label: (round(row.begin, 1), round(row.end, 1), row.waiting) for row in drawn if isinstance(row, Bar)}
    assert bars["resize"] == (27.5, 34.2, 0)
    assert bars["loader alone"] == (0, 36.0, 0)
    assert bars["loader + model (25% of it waits for data)"] == (0, 1000.0, 250)
    assert "as the longest lane, 790 ms (model); lanes that share the same 2 processors" in section.texts[0]


def test_without_workers_all_parts_form_one_lane() -> None:
    (stages,) = lanes(workers=0).values()
    assert list(stages) == ["read", "decode", "resize", "normalise", "resnet18: forward, backward, update"]
    assert stages["decode"] == 53.333


def test_lanes_of_a_gpu_of_storage_and_of_dali() -> None:
    made = document()
    made["measured"] = [each for each in made["measured"] if each["name"] != "normalise"]
    for name, rate in (("copy to device", 64_000.0), ("copy to device + normalise", 16_000.0)):
        made["measured"].append({**made["measured"][0], "name": name, "images_per_s": rate})
    workers, feed, _ = lanes({"device": "cuda"}, measured=made["measured"]).values()
    assert feed == {"copy to device": 1.0, "normalise": 3.0}
    assert len(workers) == 3
    loader = next(each for each in made["measured"] if each["kind"] == "loader")
    loader["resources"]["storage_mb_s"] = 190.0
    assert next(iter(lanes(measured=made["measured"]).values()))["read"] == 15.238
    assert next(iter(lanes(loader={"decodes_on": "cuda"}))) == "Feed, on batch n + 1"


def test_ceilings_beyond_the_axis_are_cut_off(made: str) -> None:
    chart = rates_chart(restored(document()))
    assert (chart.limit, chart.ceiling) == (pytest.approx(1.1 * 1.05 * 2411), 1940)
    bars = {row.label: row for row in chart.rows if isinstance(row, Bar)}
    assert chart.value_at(bars["read, one thread, from the page cache"]) == "100.00%"
    assert bars["decode + resize, simplejpeg, times 2 processors"].value == "1,940"
    below = Bar(label="x", end=1930.0, value="1,930", kind="loader")
    assert chart.value_at(below) == chart.at(1940)  # the line would cross its value
    assert chart.value_at(replace(below, end=1500.0)) == chart.at(1500)
    drawn = made[made.index("Reached rates</p>") : made.index("<figcaption>")]
    assert re.search(r'beyond" style="left:0.00%;width:100.00%"></i>\n<i[^\n]*\n<b style="left:100.00%">38,000<', drawn)
    assert len(re.findall(r'class="spread"', drawn)) == sum(m["high"] < chart.limit for m in document()["measured"])
    assert [text for _, text in ticks(2785)] == ["0", "1,000", "2,000"]


def test_no_error_tick_overlaps_the_value_of_its_bar() -> None:
    """The value is drawn after bar and tick; if the tick exceeds the axis, both are drawn at its end."""
    changed = document()
    for each in changed["measured"]:
        if each["kind"] == "model":
            each.update(images_per_s=2500.0, low=2300.0, high=4000.0)
    chart = rates_chart(restored(changed))
    assert 2500 < chart.limit < 4000
    drawn = page(restored(changed))
    rows = re.findall(
        r'class="spread" style="left:([0-9.]+)%;width:([0-9.]+)%"></i>\s*<b style="left:([0-9.]+)%', drawn
    )
    assert len(rows) > 5
    for left, width, figure in (map(float, row) for row in rows):
        assert left + width <= figure + 0.011  # both are rounded


def test_a_sweep_of_learning_rates_is_a_page_with_its_lines() -> None:
    rates, losses = [10.0**power for power in range(-5, 1)], [2.0, 1.9, 1.0, 0.5, 4.0, 400.0]
    sweep = {"rates": rates, "losses": losses, "smoothed": losses, "suggestion": 1e-3, "lr": 1e-3}
    made = make_page("sweep", "x", [sweep_section(sweep)], about="6 updates")
    read = Page(made)
    assert "from 1e-05 to 1. Suggestion: 0.001." in read.charts[0]
    points, _ = re.findall(r'<polyline[^>]* points="([^"]*)"', made)
    assert [float(point.partition(",")[0]) for point in points.split()] == [0, 200, 400, 600, 800, 1000]


# ---- text ----


def test_the_command_line_repeats_the_settings() -> None:
    wanted = BenchSettings(backend="hdf5", cache="a b.h5", batch_size=32, model=None, baseline=True, tune=False)
    words = repeat_command(wanted)
    assert words.startswith("penstock bench DATA ")
    pairs = ("--backend hdf5", "--batch-size 32", "--model none", "--baseline", "--no-tune", "--cache 'a b.h5'")
    assert [pair for pair in pairs if pair not in words] == []
    assert "--seconds" not in words


# ---- the commands ----


def test_bench_and_report_write_the_same_page(photos: Path, tmp_path: Path) -> None:
    first, written, second = tmp_path / "pages" / "a.html", tmp_path / "a.json", tmp_path / "b.html"
    fast = "--model none --workers 0 --batch-size 4 --size 32 --seconds 0.1 --rounds 1"
    more = "--backend torch --device cpu --decoder simplejpeg --no-tune --thorough --verbose"
    penstock_here("bench", photos, *f"{fast} {more}".split(), "--json", written, "--report", first)
    record = json.loads(written.read_text())
    assert str(tmp_path.parent) not in written.read_text()
    assert "'DATA'," in record["verdict"]["call"]
    over_time = {each["kind"]: each["over_time"] for each in record["measured"]}
    assert [1 <= len(windows) <= 10 for windows in over_time["loader"]] == [True]
    assert over_time["ceiling"] == []
    assert penstock_here("report", written, second).returncode == 0
    assert first.read_bytes() == second.read_bytes()
    read = Page(first.read_text("utf-8"))
    assert read.row(SIMPLEJPEG, "ceiling")
    assert len(read.charts) == 3


DAMAGES: tuple[dict[str, Any], ...] = (
    {"measured": [{"kind": "loader"}]},
    {"workers": None},
    {"environment": {}},
    {"settings": {"dtype": "int8"}},
)


@pytest.mark.parametrize("text", ["[]", "{}", "nonsense", *(json.dumps(document() | damage) for damage in DAMAGES)])
def test_invalid_record_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    done = penstock_here("report", tmp_path / "a.json", tmp_path / "a.html")
    assert re.search(r"a\.json'?: not a record of `penstock bench` \(.*\)\n$", done.stderr), done.stderr
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert not (tmp_path / "a.html").exists()
