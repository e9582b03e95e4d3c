"""The report page: one sound file with every figure of a record in it, whatever the record's strings hold."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from bench_documents import SIMPLEJPEG, document
from photo_folder import write_folder
from typer import Typer
from typer.testing import CliRunner, Result

from penstock.bench.commands import bench as command_bench
from penstock.bench.commands.report import report
from penstock.bench.measure.clock import Rate
from penstock.bench.record.record import BenchSettings
from penstock.bench.record.saved_record import restored
from penstock.bench.report.bar_charts import rates_chart
from penstock.bench.report.page import page
from penstock.bench.report.sections_choices import changes_section
from penstock.bench.report.step_lanes import Lane, step_lanes
from penstock.bench.report.text import rate_text, repeat_command
from penstock.bench.run import cache_kinds
from penstock.bench.run.cache_kinds import wants_cache_kinds, with_cache_kinds
from penstock.bench.run.run import _summary
from penstock.loaders import open_source
from penstock.loaders.cache_build.build_set import build_cache
from penstock.pipelines.errors import LoaderError

ROOT = Path(__file__).resolve().parents[3]
VOID = ("meta", "br", "img", "input", "link", "hr")
PLOTS = ("rates", "lanes", "pace-alone", "pace-both", "candidates", "tradeoff")


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
    def rows(self) -> list[list[str]]:
        """The cells of each row of each table."""
        return [row.strip("\t").split("\t") for row in "\t".join(self.cells).split("\n")]

    def row(self, *heads: str) -> list[str]:
        """The one row that begins so."""
        (found,) = [row for row in self.rows if tuple(row[: len(heads)]) == heads]
        return found


@pytest.fixture(scope="module")
def made() -> str:
    return page(document())


def test_the_page_is_one_sound_file_that_fetches_and_runs_nothing(made: str) -> None:
    read = Page(made)
    assert made.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert read.open == []
    tags = Counter(tag for tag, _ in read.elements)
    assert not {"script", "link", "img", "iframe", "object", "image"} & set(tags)
    assert tags["svg"] == 2 * len(PLOTS)
    for tag, attributes in read.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "srcset", "xlink:href")]
        assert (attributes.get("href") or "#").startswith("#"), tag
        assert "url(#" in (attributes.get("clip-path") or "url(#")
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", made)
    about = {a.get("http-equiv") or a.get("name"): a.get("content") for tag, a in read.elements if tag == "meta"}
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert about["Content-Security-Policy"] == policy
    assert about["viewport"] == "width=device-width, initial-scale=1"
    ids = Counter(a["id"] for _, a in read.elements if "id" in a)
    assert set(ids.values()) == {1}
    asked = set(re.findall(r'(?:url\(|href=")#([^)"]+)', made))
    assert asked == set(ids)
    drawings = [a for _, a in read.elements if a.get("role") == "img"]
    assert len(drawings) == len(PLOTS)
    assert all(len(a["aria-label"] or "") > 60 for a in drawings)
    assert {a["class"] for tag, a in read.elements if tag == "svg"} == {
        f"{plot}-{width}" for plot in PLOTS for width in ("wide", "narrow")
    }
    assert all("width" not in a and a["viewbox"] for tag, a in read.elements if tag == "svg")


def test_the_same_record_gives_the_same_bytes(made: str) -> None:
    assert made == page(json.loads(json.dumps(document())))


def test_every_measurement_is_in_the_table_and_in_both_drawings(made: str) -> None:
    read = Page(made)
    for each in document()["measured"]:
        name = each["name"] + f", {each['note']}" * bool(each["note"])
        rate = f"{each['images_per_s']:,.0f}"
        row = next(row for row in read.rows if row[0] == name and rate in row)
        assert row[3] == f"{each['low']:,.0f} to {each['high']:,.0f}"
        for width in ("wide", "narrow"):
            drawing = re.search(rf'<svg class="rates-{width}".*?</svg>', made, re.DOTALL)
            assert drawing is not None
            assert f">{rate}</text>" in drawing[0], each
    assert "25% of the step waits for data" in read.row("penstock + resnet18", "loader + model")[5]
    loader = read.row("penstock, torch backend", "loader")
    assert loader[4] == "36.0 ms"
    assert loader[5] == "1.5 processors (75%), 812 MB of memory"


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
    offer = ["--resize 400 --quality 90", "40,000", "8.0 MB", "3,000", "2,700 to 3,300", "1.68 ×", "34.6 dB"]
    assert read.row("--resize 400 --quality 90") == offer
    paced = ["penstock, torch backend", "1,690, 1,868", "1,601", "1,957"]
    assert paced in read.rows


def test_advice_that_was_not_tried_has_no_columns_for_it() -> None:
    record, verdict = restored(document()), document()["verdict"]
    (table,) = changes_section({"verdict": verdict}, record).tables
    change = ("--workers 4", "loader", "1,779", "3,558", "2.00 ×", "there are processors left")
    assert (len(table.columns), table.rows) == (6, [change])
    nothing = changes_section({"verdict": {**verdict, "advice": []}}, record)
    assert (nothing.tables, "no gain from any change" in nothing.texts[0]) == ((), True)


def test_slow_rates_keep_two_figures() -> None:
    assert [rate_text(rate) for rate in (None, 0.0, 0.25, 9.44, 10.4, 12_345.6)] == [
        "",
        "0",
        "0.2",
        "9.4",
        "10",
        "12,346",
    ]


HOSTILE = (
    '#010101 id="x" </text><script>alert(1)</script><img src=x onerror="a()"> $\\frac{1}{2}$ {{ 7*7 }} &'
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
    made = page(changed)
    made.encode("utf-8")
    read = Page(made)
    assert not {"script", "img"} & {tag for tag, _ in read.elements}
    assert {a["id"] for _, a in read.elements if "id" in a}.isdisjoint({"x"})
    assert not re.search("[\x00\u202e\ud800\t]", made)
    escaped = HOSTILE[: HOSTILE.index("\u202e")] + "\\u202egnp.exe\\x00\\ud800\\t"
    assert read.text.count(escaped) > 10
    written = Page(" ".join(re.findall(r"<text.*?</text>", made, re.DOTALL))).text
    for words in ('#010101 id="x"', "<script>alert(1)</script>", "$\\frac{1}{2}$"):
        assert words in written, words


def test_of_an_old_record_the_missing_parts_are_left_out_and_said() -> None:
    old = json.loads((ROOT / "bench/results/cpu-2-photos-uint8.json").read_text("utf-8"))
    assert "over_time" not in old["measured"][0]
    read = Page(page(old))
    for words in ("that did not tell", "that did not keep it", "holds no trade-off", "is not in this record"):
        assert words in read.text, words
    assert len([tag for tag, _ in read.elements if tag == "svg"]) == 4
    assert read.row("read files, one thread", "ceiling")[2] == "58,146"


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


def test_ceilings_beyond_the_axis_are_broken_off_and_keep_their_figures() -> None:
    chart = rates_chart(restored(document()))
    assert chart.limit == pytest.approx(1.1 * 1.05 * 2411)
    bars = {row.label: row for row in chart.rows if not isinstance(row, str)}
    assert bars["read, one thread, from the page cache"].end > chart.limit
    assert bars["decode + resize, simplejpeg, times 2 processors"].value == "1,940"
    wide, narrow = chart.drawn("x")
    for drawing, right in ((wide, 900 - 120), (narrow, 360 - 78)):
        assert ">38,000</text>" in drawing
        drawn = re.findall(r'd="M ([\d.]+) [\d.]+ \nL ([\d.]+) [^"]*z\n"[^>]*fill: var\(--(?:ceiling|loader)', drawing)
        assert len(drawn) > 5
        assert max(float(end) for _, end in drawn) == right


# ---- the record ----


def test_a_record_keeps_the_windows_of_loaders_and_no_others() -> None:
    rate = Rate.from_steps([10, 10, 20], [1.0, 2.0, 5.00004])
    assert _summary("loader", "x", [rate, rate], "").over_time == (((1.0, 10.0), (2.0, 5.0), (5.0, 4.0)),) * 2
    assert _summary("ceiling", "x", [rate], "").over_time == ()


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
    more = ("--backend", "torch", "--device", "cpu", "--decoder", "simplejpeg", "--no-tune")
    result = invoke(command_bench.bench, photos, *FAST, *more, "--json", written, "--report", first)
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
    name = next(each["name"] for each in record["measured"] if each["name"] == SIMPLEJPEG)
    assert read.row(name, "ceiling")
    assert len([tag for tag, _ in read.elements if tag == "svg"]) == 8


def test_without_matplotlib_nothing_is_measured(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(command_bench, "_measure", lambda *_, **__: pytest.fail("measured"))
    with pytest.raises(LoaderError, match=r"E-DEPENDENCY.*no report page.*penstock\[report\]"):
        invoke(command_bench.bench, photos, *FAST, "--report", tmp_path / "a.html")


@pytest.mark.parametrize(
    "damage",
    [{"measured": 3}, {"workers": None}, {"cache": {"offers": [{}]}}, {"measured": [{"kind": "loader"}]}, {"notes": 7}],
)
def test_what_is_no_record_is_said_in_one_line(damage: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(document() | damage))
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

    monkeypatch.setattr(cache_kinds, "advise_cache", full)
    before = restored(document())
    after = with_cache_kinds(open_source(photos), before, lambda *_: None)
    assert after.notes == (*before.notes, "the cache trade-off was left out: the disk is full")
    assert (after.cache, after.measured) == (None, before.measured)
