"""`penstock compare`: ratios, noise, refusals, exit codes."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_line import penstock_here

from penstock.bench.record.bench_record import BenchRecord, read_record
from penstock.bench.record.comparison import Comparison
from penstock.bench.record.comparison import compare as compared

RECORD: dict[str, Any] = {
    "settings": {"batch_size": 64, "rounds": 3, "workers": None},
    "workers": 2,
    "decoder": "simplejpeg",
    "data": {"fingerprint": "f"},
    "loader": {},
    "environment": {"cpu": "a CPU", "cpus": 2, "gpu": None, "packages": {"torch": "2.9"}, "commit": "abc"},
    "measured": [
        {"kind": "loader", "name": "ours", "images_per_s": 1000.0, "low": 950.0, "high": 1100.0, "rounds": []},
        {"kind": "both", "name": "ours + model", "images_per_s": 500.0, "low": 490.0, "high": 510.0, "rounds": []},
        {"kind": "baseline", "name": "theirs", "images_per_s": 400.0, "low": 400.0, "high": 400.0, "rounds": []},
        {"kind": "ceiling", "name": "old", "images_per_s": 9.0, "low": 9.0, "high": 9.0, "rounds": []},
    ],
}


def changed(**rates: tuple[float, float, float]) -> dict[str, Any]:
    """RECORD with other (median, low, high) of measurements, by kind."""
    record = copy.deepcopy(RECORD)
    for measured in record["measured"]:
        if measured["kind"] in rates:
            measured["images_per_s"], measured["low"], measured["high"] = rates[measured["kind"]]
    return record


def compare(before: dict[str, Any], after: dict[str, Any]) -> Comparison:
    return compared(msgspec.convert(before, BenchRecord), msgspec.convert(after, BenchRecord))


def run(folder: Path, after: dict[str, Any], *arguments: str, before: dict[str, Any] = RECORD) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    for name, record in (("a", before), ("b", after)):
        (folder / f"{name}.json").write_text(json.dumps(record))
    done = penstock_here("compare", folder / "a.json", folder / "b.json", *arguments, env={"COLUMNS": "200"})
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("after", "noise"),
    [
        ((1050, 990, 1060), True),  # each inside the other's spread
        ((1050, 1040, 1060), False),  # the first record's median is outside the second's
        ((1110, 990, 1120), False),  # the second's is outside the first's
        ((1000, 1000, 1000), True),
    ],
)
def test_a_change_inside_both_spreads_is_noise(after: tuple[float, float, float], noise: bool) -> None:
    change = compare(RECORD, changed(loader=after)).changes[0]
    assert (change.ratio, change.within_noise) == (after[0] / 1000, noise)


def test_only_common_measurements_are_compared() -> None:
    after = changed()
    after["measured"] = [*after["measured"][:2], {**after["measured"][3], "name": "new"}]
    assert [change.name for change in compare(RECORD, after).changes] == ["ours", "ours + model"]
    after["measured"] = after["measured"][2:]
    with pytest.raises(ValueError, match="no measurement in common"):
        compare(RECORD, after)


@pytest.mark.parametrize(
    ("rates", "code"),
    [
        ({"loader": (800, 790, 810)}, 3),
        ({"both": (400, 390, 410)}, 3),
        ({"loader": (800, 700, 1010)}, 3),  # its own median is outside the first record's spread
        ({"loader": (960, 950, 1010)}, 0),  # within the noise
        ({"loader": (920, 910, 930)}, 0),  # slower, but above the ratio
        ({"baseline": (40, 40, 40), "ceiling": (1, 1, 1)}, 0),  # not ours
    ],
)
def test_fail_below_applies_to_our_loader_beyond_the_noise(
    tmp_path: Path, rates: dict[str, tuple[float, float, float]], code: int
) -> None:
    ratio = "0.99" if rates.get("loader", (0,))[0] == 960 else "0.9"
    assert run(tmp_path, changed(**rates), "--fail-below", ratio)[0] == code
    assert run(tmp_path, changed(**rates))[0] == 0


def test_the_table_names_ratio_and_noise(tmp_path: Path) -> None:
    after = changed(loader=(800, 790, 810), baseline=(440, 440, 440))
    after["environment"]["packages"] = {"torch": "2.10"}
    code, output, _ = run(tmp_path, after, "--fail-below", "0.9")
    lines = [" ".join(line.replace("│", " ").split()) for line in output.splitlines()]
    assert code == 3
    assert "loader ours 1,000 (950 to 1,100) 800 (790 to 810) 0.800 slower" in lines
    assert "both ours + model 500 (490 to 510) 500 (490 to 510) 1.000 within the noise" in lines
    assert "baseline theirs 400 (400 to 400) 440 (440 to 440) 1.100 faster" in lines
    assert "Versions: torch '2.9' and '2.10'" in lines
    assert "below 0.9 times: ours, 0.800 times" in lines


def test_names_are_not_markup(tmp_path: Path) -> None:
    # In a foreign record, [/] would raise a MarkupError and an escape sequence would control the terminal.
    names = ("[red]ours[/red]", "ours [/] :smile:", "\x1b[2Jtheirs", "[link=file:///etc]old")
    for record in (before := copy.deepcopy(RECORD), after := changed(loader=(800, 790, 810))):
        for measured, name in zip(record["measured"], names, strict=True):
            measured["name"] = name
    code, output, _ = run(tmp_path, after, "--fail-below", "0.9", before=before)
    assert code == 3
    for name in (*names[:2], "\\x1b[2Jtheirs", names[3]):
        assert f" {name} " in output
    assert "\x1b" not in output
    assert "below 0.9 times: [red]ours[/red], 0.800 times" in output


def test_json_has_the_same_content(tmp_path: Path) -> None:
    code, output, _ = run(tmp_path, changed(loader=(800, 790, 810)), "--json", "--fail-below", "0.9")
    document = json.loads(output)
    assert code == 3
    assert document["slower"] == ["ours"]
    assert document["changes"][0]["ratio"] == 0.8
    assert document["changes"][0]["before_spread"] == [950, 1100]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("environment.cpu", "another", "machine: cpu 'a CPU' and 'another'"),
        ("environment.gpu", "H100", "machine: gpu None and 'H100'"),
        ("data.fingerprint", "g", "data: fingerprint 'f' and 'g'"),
        ("settings.batch_size", 32, "settings: batch_size 64 and 32"),
        ("settings.dtype", "uint8", "settings: dtype 'float32' and 'uint8'"),  # its default, in an older record
        ("workers", 4, "settings: workers 2 and 4"),
    ],
)
def test_incomparable_records_are_refused_unless_forced(tmp_path: Path, path: str, value: object, words: str) -> None:
    after = changed()
    part, _, last = path.rpartition(".")
    (after[part] if part else after)[last] = value
    code, _, error = run(tmp_path, after)
    assert (code, words in error, "--force" in error) == (2, True, True)
    code, output, _ = run(tmp_path, after, "--force")
    assert (code, f"Different: {words}" in output) == (0, True)


@pytest.mark.parametrize(("name", "value"), [("rounds", 9), ("workers", 2), ("baseline", True)])
def test_settings_without_effect_may_differ(name: str, value: object) -> None:
    after = changed()
    after["settings"][name] = value
    assert compare(RECORD, after).differs == ()


def test_records_of_this_repository_are_read() -> None:
    path = Path(__file__).resolve().parents[3] / "bench" / "results" / "cpu-2-photos-uint8.json"
    found = compared(read_record(path), read_record(path))
    assert found.differs == ()
    assert all(change.ratio == 1 and change.within_noise for change in found.changes)
