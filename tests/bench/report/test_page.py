"""The report page: one sound file with every figure of a record in it, whatever the record's strings hold."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from bench_documents import SIMPLEJPEG, document, restored
from photo_folder import write_folder
from typer import Typer
from typer.testing import CliRunner, Result

from penstock.bench.commands.bench import bench
from penstock.bench.commands.report import report
from penstock.bench.measure.clock import Rate
from penstock.bench.record.bench_record import BenchSettings
from penstock.bench.report.charts import Bar, log_ticks, ticks
from penstock.bench.report.lr_sweep_page import write_sweep_page
from penstock.bench.report.page import page
from penstock.bench.report.sections_choices import changes_section
from penstock.bench.report.sections_measured import rates_chart
from penstock.bench.report.step_lanes import Lane, step_lanes
from penstock.bench.report.text import rate_text, repeat_command
from penstock.bench.run import advise_cache
from penstock.bench.run.advise_cache import wants_cache_kinds, with_cache_kinds
from penstock.bench.run.measure import _summarise
from penstock.loaders import open_source
from penstock.loaders.cache_build.build_set import build_cache
from penstock.pipelines.errors import LoaderError

RESULTS = Path(__file__).resolve().parents[3] / "bench" / "results"
VOID = ("meta", "br", "img", "input", "link", "hr")
CHARTS = 7  # rates, lanes, over time alone and with the model, candidates, and two of caches


class Page(HTMLParser):
    """A page's elements and texts; raises where a tag is closed that is not open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("th", "td", "tr"):
            self.cells.append("" if tag != "tr" else "\n")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.open and self.open[-1] in ("th", "td"):
            self.cells[-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def tags(self) -> Counter[str]:
        return Counter(tag for tag, _ in self.elements)

    @property
    def charts(self) -> list[str]:
        """What each chart is called for those who do not see it."""
        return [attributes["aria-label"] or "" for _, attributes in self.elements if attributes.get("role") == "img"]

    @property
    def rows(self) -> list[list[str]]:
        """The cells of each row of each table."""
        return [row.strip("\t").split("\t") for row in "\t".join(self.cells).split("\n")]

    def row(self, *heads: str) -> list[str]:
        """The one row that begins so."""
        (found,) = [row for row in self.rows if tuple(row[: len(heads)]) == heads]
        return found


@pytest.fixture(scope="module")
def made() -> str:
    return page(restored(document()))


def test_the_page_is_one_sound_file_that_fetches_and_runs_nothing(made: str) -> None:
    read = Page(made)
    assert made.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert read.open == []
    assert not {"script", "link", "img", "iframe", "object", "image"} & set(read.tags)
    for _, attributes in read.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "srcset", "href")]
    assert not re.search(r"https?:|//[a-z]|@import|url\(", made)
    about = {a.get("http-equiv") or a.get("name"): a.get("content") for tag, a in read.elements if tag == "meta"}
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert about["Content-Security-Policy"] == policy
    assert about["viewport"] == "width=device-width, initial-scale=1"
    assert len(read.charts) == CHARTS
    assert all(len(text) > 60 for text in read.charts)
    assert read.tags["polyline"] == 4 * 2  # three loaders alone, one with the model, in two rounds


def test_the_same_record_gives_the_same_bytes(made: str) -> None:
    assert made == page(restored(json.loads(json.dumps(document()))))


def test_every_measurement_is_in_the_table_and_in_the_chart(made: str) -> None:
    read = Page(made)
    chart = made[made.index("What was reached</p>") : made.index("<figcaption>")]
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


def test_what_limits_what_to_change_and_how_to_repeat_it_are_said(made: str) -> None:
    read = Page(made)
    for words in (
        "1,779 images/s from the loader; the limit is the model",
        "The model limits: 81 images/s.",
        "2.49 times",
        "200 images, 4 classes",
        "some CPU",
        "2.13.0",
        "a peer was left out: it has no files",
        "loader = create_loader( 'DATA', )",
        "penstock bench DATA",
        "raw was left out: no room",
    ):
        assert words in read.text, words
    change = ["--workers 4", "loader", "1,700", "3,000", "1.76 ×", "2,720", "1.60 ×", "there are processors left"]
    assert read.row("--workers 4") == change
    assert read.row("more memory")[-1] == "not tried: there is none"
    assert read.row("hdf5 of the cache")[1:4] == ["2,400", "1.8", "850 MB"]
    assert read.row("dali of the files")[-1] == "DALI is not installed"
    stored = ["--resize 400 --quality 90", "40,000", "8.0 MB", "3,000", "2,700 to 3,300", "1.68 ×", "34.6 dB"]
    assert read.row("--resize 400 --quality 90") == stored
    assert "--resize 400 --quality 90, 34.6 dB: 40 kB" in read.charts[-1]
    assert ["penstock, torch backend", "1,690, 1,868", "1,601", "1,957"] in read.rows


def test_advice_that_was_not_tried_has_no_columns_for_it() -> None:
    (table,) = changes_section(restored({**document(), "applied": []})).tables
    change = ("--workers 4", "loader", "1,779", "3,558", "2.00 ×", "there are processors left")
    assert (len(table.columns), table.rows) == (6, [change])
    verdict = {**document()["verdict"], "advice": []}
    nothing = changes_section(restored({**document(), "applied": [], "verdict": verdict}))
    assert (nothing.tables, "no gain from any change" in nothing.texts[0]) == ((), True)


HOSTILE = (
    '#010101 id="x" </b><script>alert(1)</script><img src=x onerror="a()"> $\\frac{1}{2}$ {{ 7*7 }} &'
    " \u202egnp.exe\x00\ud800\t"
)


def test_strings_of_the_user_stay_text_wherever_they_stand() -> None:
    changed = document()
    changed["data"]["summary"] = changed["notes"][0] = changed["environment"]["cpu"] = HOSTILE
    changed["environment"]["packages"][HOSTILE] = HOSTILE
    changed["verdict"] = dict.fromkeys(("limit", "sentence", "call"), HOSTILE) | {
        "advice": [{"what": HOSTILE, "images_per_s": 5.0, "why": HOSTILE}]
    }
    changed["applied"][0]["what"] = HOSTILE
    for each in changed["measured"]:
        each["name"] = f"{each['name']} {HOSTILE}"
    for each in changed["candidates"] + changed["cache"]["offers"]:
        each["name"] = HOSTILE
    made = page(restored(changed))
    made.encode("utf-8")
    read = Page(made)
    assert not {"script", "img"} & set(read.tags)
    assert not any("id" in attributes for _, attributes in read.elements)
    assert not re.search("[\x00\u202e\ud800\t]", made)
    escaped = HOSTILE[: HOSTILE.index("\u202e")] + "\\u202egnp.exe\\x00\\ud800\\t"
    assert read.text.count(escaped) > 50  # in tables and in charts
    assert [escaped in text for text in read.charts] == [
        True,
        False,
        *[True] * 5,
    ]  # the step's parts have no such names


@pytest.mark.parametrize("name", ["cpu-2-photos-uint8", "cpu-2-photos-hdf5-uint8"])
def test_of_an_old_record_the_missing_parts_are_left_out_and_said(name: str, tmp_path: Path) -> None:
    invoke(report, RESULTS / f"{name}.json", tmp_path / "a.html")
    read = Page((tmp_path / "a.html").read_text("utf-8"))
    for words in ("that gave no advice", "that did not keep it", "bench --cache-tradeoff DATA measures it"):
        assert words in read.text, words
    assert len(read.charts) == 2
    assert "decode + resize, simplejpeg, times 2 processors: " in read.charts[0]


def test_records_of_runs_with_a_known_limit_give_a_page() -> None:
    runs = json.loads((RESULTS / "bottlenecks-2-cores.json").read_text())["bottlenecks"]
    charts = [Page(page(restored(each["record"]))).charts for each in runs]
    assert [len(each) for each in charts] == [3, 3, 3, 4, 3]  # the fourth with a model


# ---- what is drawn ----


def lanes(settings: dict[str, Any] | None = None, loader: dict[str, Any] | None = None, **changes: Any) -> list[Lane]:
    made = {**document(), **changes}
    made["settings"] |= settings or {}
    made["loader"] |= loader or {}
    return list(step_lanes(restored(made)))


def stages(lane: Lane) -> dict[str, float]:
    return {stage.name: round(stage.ms, 3) for stage in lane.stages}


def test_lanes_run_side_by_side_and_workers_share_a_batch() -> None:
    workers, feed, model, measured = lanes()
    assert stages(workers) == {"read": 0.842, "decode": 26.667, "resize": 6.667}  # of 64 images, by 2 workers at once
    assert stages(feed) == {"normalise": 4.571}
    assert stages(model) == {"resnet18: forward, backward, update": 790.123}
    titles = ["2 workers at once, on batch n + 2", "Feed, on batch n + 1", "Model, on batch n"]
    assert [lane.title for lane in (workers, feed, model)] == titles
    assert stages(measured) == {"loader alone": 35.975, "loader + model": 1000.0}
    assert measured.stages[1].waiting == 250
    assert (measured.ms, round(workers.ms, 1)) == (1000.0, 34.2)


def test_without_workers_one_thing_follows_another() -> None:
    parts, _ = lanes(workers=0)
    assert list(stages(parts)) == ["read", "decode", "resize", "normalise", "resnet18: forward, backward, update"]
    assert stages(parts)["decode"] == 53.333


def test_lanes_of_a_gpu_of_storage_and_of_dali() -> None:
    made = document()
    made["measured"] = [each for each in made["measured"] if each["name"] != "normalise"]
    for name, rate in (("copy to device", 64_000.0), ("copy to device + normalise", 16_000.0)):
        made["measured"].append({**made["measured"][0], "name": name, "images_per_s": rate})
    workers, feed, *_ = lanes({"device": "cuda"}, measured=made["measured"])
    assert stages(feed) == {"copy to device": 1.0, "normalise": 3.0}
    loader = next(each for each in made["measured"] if each["kind"] == "loader")
    loader["resources"]["storage_mb_s"] = 190.0
    assert stages(lanes(measured=made["measured"])[0])["read"] == 15.238
    assert lanes(loader={"decodes_on": "cuda"})[0].title == "Feed, on batch n + 1"
    assert len(workers.stages) == 3


def test_ceilings_beyond_the_axis_are_broken_off_and_keep_their_figures(made: str) -> None:
    chart = rates_chart(restored(document()))
    assert chart.limit == pytest.approx(1.1 * 1.05 * 2411)
    bars = {row.label: row for row in chart.rows if isinstance(row, Bar)}
    far = bars["read, one thread, from the page cache"]
    assert (far.end > chart.limit, chart.value_at(far)) == (True, "100.00%")
    assert (chart.ceiling, bars["decode + resize, simplejpeg, times 2 processors"].value) == (1940, "1,940")
    drawn = made[made.index("What was reached</p>") : made.index("<figcaption>")]
    assert re.search(
        r'beyond" style="left:0.00%;width:100.00%"></i>\n<i[^\n]*\n<b style="left:100.00%">38,000</b>', drawn
    )
    assert len(re.findall(r'class="spread"', drawn)) == sum(m["high"] < chart.limit for m in document()["measured"])


@pytest.mark.parametrize(
    ("limit", "texts"), [(2785, "0 1,000 2,000"), (1.0, "0 0.25 0.5 0.75 1"), (12, "0 2.5 5 7.5 10")]
)
def test_ticks_are_round_numbers_on_the_axis(limit: float, texts: str) -> None:
    found = list(ticks(limit))
    assert [text for _, text in found] == texts.split()
    assert all(0 <= float(at[:-1]) <= 100 for at, _ in found)
    at, powers = zip(*log_ticks(1e-3, 10.0), strict=True)
    assert (" ".join(at), " ".join(powers)) == ("0.00% 25.00% 50.00% 75.00% 100.00%", "0.001 0.01 0.1 1 10")


def test_a_sweep_of_learning_rates_is_a_page_with_its_lines(tmp_path: Path) -> None:
    rates, losses = [10.0**power for power in range(-5, 1)], [2.0, 1.9, 1.0, 0.5, 4.0, 400.0]
    sweep = {"rates": rates, "losses": losses, "smoothed": losses, "suggestion": 1e-3, "lr": 1e-3}
    write_sweep_page(sweep, tmp_path / "sweep.html")
    read = Page((tmp_path / "sweep.html").read_text("utf-8"))
    assert read.open == []
    assert read.tags["polyline"] == 2
    assert "from 1e-05 to 1. Suggestion: 0.001." in read.charts[0]
    points = next(attributes["points"] for tag, attributes in read.elements if tag == "polyline")
    assert [float(point.partition(",")[0]) for point in (points or "").split()] == [0, 200, 400, 600, 800, 1000]


# ---- text ----


def test_slow_rates_keep_two_figures() -> None:
    found = [rate_text(rate) for rate in (None, 0.0, 0.25, 9.44, 10.4, 12_345.6)]
    assert found == ["", "0", "0.2", "9.4", "10", "12,346"]


def test_the_command_line_repeats_the_settings() -> None:
    wanted = BenchSettings(backend="hdf5", cache="a b.h5", batch_size=32, model=None, baseline=True, tune=False)
    words = shlex.split(repeat_command(wanted))
    assert words[:3] == ["penstock", "bench", "DATA"]
    pairs = ("--backend hdf5", "--batch-size 32", "--model none", "--device cpu", "--baseline", "--no-tune")
    for pair in pairs:
        assert pair in " ".join(words)
    assert words[words.index("--cache") + 1] == "a b.h5"
    assert "--seconds" not in words


# ---- the commands ----


def invoke(command: Any, *arguments: object) -> Result:
    app = Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), 16)


FAST = ("--model", "none", "--workers", 0, "--batch-size", 4, "--size", 32, "--seconds", 0.1, "--rounds", 1)


def test_bench_writes_the_page_and_report_writes_it_again_of_the_record(photos: Path, tmp_path: Path) -> None:
    first, written, second = tmp_path / "pages" / "a.html", tmp_path / "a.json", tmp_path / "b.html"
    more = ("--backend", "torch", "--device", "cpu", "--decoder", "simplejpeg", "--no-tune", "--thorough", "--verbose")
    result = invoke(bench, photos, *FAST, *more, "--json", written, "--report", first)
    assert "penstock cache build" in result.output  # the trade-off's table
    record = json.loads(written.read_text())
    assert [offer["name"] for offer in record["cache"]["offers"]][:2] == ["files", "cache"]
    assert str(tmp_path.parent) not in written.read_text()
    assert "'DATA'," in record["verdict"]["call"]
    (loader,) = [each for each in record["measured"] if each["kind"] == "loader"]
    assert [1 <= len(windows) <= 10 for windows in loader["over_time"]] == [True]
    invoke(report, written, second)
    assert first.read_bytes() == second.read_bytes()
    read = Page(first.read_text("utf-8"))
    assert read.row(SIMPLEJPEG, "ceiling")
    assert len(read.charts) == 5


def test_a_record_keeps_the_windows_of_loaders_and_no_others() -> None:
    rate = Rate.from_steps([10, 10, 20], [1.0, 2.0, 5.00004])
    assert _summarise("loader", "x", [rate, rate], "").over_time == (((1.0, 10.0), (2.0, 5.0), (5.0, 4.0)),) * 2
    assert _summarise("ceiling", "x", [rate], "").over_time == ()


DAMAGES: tuple[dict[str, Any], ...] = (
    {"measured": 3},
    {"measured": [{"kind": "loader"}]},
    {"workers": None},
    {"cache": {"offers": [{}]}},
    {"notes": 7},
    {"environment": {}},
    {"settings": {"dtype": "int8"}},
    {"data": None},
)


@pytest.mark.parametrize("text", ["[]", "{}", "nonsense", *(json.dumps(document() | damage) for damage in DAMAGES)])
def test_what_is_no_record_is_said_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json: this is no record of `penstock bench` \(.*\)$"):
        invoke(report, tmp_path / "a.json", tmp_path / "a.html")
    assert not (tmp_path / "a.html").exists()


def test_caches_are_tried_by_default_of_files_only(photos: Path, tmp_path: Path) -> None:
    files = open_source(photos)
    build_cache(files, tmp_path / "x.h5", workers=0)
    cache = open_source(tmp_path / "x.h5")
    assert [wants_cache_kinds(files, asked, default=True) for asked in (None, True, False)] == [True, True, False]
    assert [wants_cache_kinds(cache, asked, default=True) for asked in (None, False)] == [False, False]
    assert not wants_cache_kinds(files, None, default=False)
    with pytest.raises(ValueError, match="a cache already"):
        wants_cache_kinds(cache, True, default=False)


def test_a_trade_off_that_fails_costs_no_measurement(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise LoaderError("E-NOSPC", "the disk is full")

    monkeypatch.setattr(advise_cache, "advise_cache", full)
    before = restored({**document(), "cache": None})
    after = with_cache_kinds(open_source(photos), before, lambda *_: None)
    assert after.notes == (*before.notes, "the cache trade-off was left out: the disk is full")
    assert (after.cache, after.measured) == (None, before.measured)
