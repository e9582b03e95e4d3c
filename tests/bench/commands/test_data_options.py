"""Options that select a part of the data or describe its storage, on all commands that open data."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import lines_of, penstock_here

from penstock.bench.commands.data_options import DataOptions
from penstock.bench.commands.shared_options import takes_settings
from penstock.bench.probe.search.candidate import BenchData
from penstock.bench.record.settings import BenchSettings
from penstock.bench.report.text import repeat_command
from penstock.bench.train.job import TrainingJob
from penstock.bench.train.step.settings import TrainSettings
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.loaders.data.sources.data import Data
from penstock.loaders.front.open_source import FILES, Kind, open_source, select_options

NUM_PHOTOS = 24
OPENING = sys.modules["penstock.loaders.front.open_source"]
OF_TABLES = ("image", "label", "root", "classes")


@pytest.fixture
def tables(photos: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of each opened "table" (*.lst), which is replaced by the photos."""
    seen: list[dict[str, Any]] = []

    def open_table(paths: list[bytes], **options: Any) -> Any:
        seen.append(options)
        return open_source(photos)

    table = Kind(FILES, "a table", lambda *_: True, open_table, OF_TABLES, (".lst", ".rows"))
    monkeypatch.setattr(OPENING, "KINDS", [table, *OPENING.KINDS])
    monkeypatch.setattr(OPENING, "SOURCE_OPTIONS", OPENING.SOURCE_OPTIONS | set(OF_TABLES))
    return seen


def test_only_given_options_reach_a_command(tmp_path: Path) -> None:
    seen: list[Any] = []

    @takes_settings(data_options=DataOptions)
    def command(data: str, *, data_options: dict[str, Any]) -> None:
        seen.append((data, data_options))

    (tmp_path / "names").write_text("cat\nhot dog, plain\n\n")
    command("x")
    command("x", member_list="idx")  # type: ignore[call-arg]
    command("x", subset=":9", max_per_class=3, root="/a", classes="cat, dog")  # type: ignore[call-arg]
    command(data="x", image=None, classes=str(tmp_path / "names"))  # type: ignore[call-arg]
    assert seen == [
        ("x", {}),
        ("x", {"member_list": "idx"}),
        ("x", {"subset": ":9", "max_per_class": 3, "root": "/a", "classes": ["cat", "dog"]}),
        ("x", {"classes": ["cat", "hot dog, plain"]}),
    ]


def test_several_label_columns_are_served_by_name(photos: Path, tmp_path: Path) -> None:
    table = tmp_path / "photos.csv"
    files = sorted(photos.rglob("*.jpg"))[:8]
    table.write_text("path,price,kind\n" + "".join(f"{file},{n}.5,k{n % 2}\n" for n, file in enumerate(files)))
    labels = ("--label", "price", "--label", "kind")
    run = penstock_here("iterate", table, *labels, "--size", 16, "--batch-size", 4, "--workers", 0, "--eval")
    assert (run.returncode, run.stderr.count("\n")) == (0, 1)
    assert lines_of(run.stdout)[0]["label"] == {"price": [0.5, 1.5, 2.5, 3.5], "kind": [0, 1, 0, 1]}
    assert " ".join(labels) in repeat_command(BenchSettings(data_options={"label": ["price", "kind"]}))


def test_rows_without_a_label_are_left_out_on_request(photos: Path, tmp_path: Path) -> None:
    files = sorted(photos.rglob("*.jpg"))[:8]
    (tmp_path / "t.csv").write_text("path,label\n" + "".join(f"{file},{n % 2 or ''}\n" for n, file in enumerate(files)))
    base = ("iterate", tmp_path / "t.csv", "--size", 16, "--batch-size", 4, "--workers", 0, "--eval")
    assert "missing_labels='leave_out'" in penstock_here(*base).stderr
    with pytest.warns(UserWarning, match="left out: 4 rows without a label"):
        run = penstock_here(*base, "--missing-labels", "leave_out")
    assert (run.returncode, lines_of(run.stdout)[0]["label"]) == (0, [1, 1, 1, 1])


def test_iterate_serves_a_part(photos: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "some.npy", np.arange(0, 24, 2))
    base = ("--size", 16, "--batch-size", 4, "--workers", 0, "--dump", tmp_path / "dump")
    for arguments, counts in (
        (("--subset", tmp_path / "some.npy"), {0: 4, 1: 4, 2: 4}),
        (("--max-per-class", 2, "--no-drop-last"), {0: 2, 1: 2, 2: 2}),
        (("--subset", ":75%", "--max-per-class", 4, "--no-drop-last"), {0: 4, 1: 4, 2: 2}),
    ):
        done = penstock_here("iterate", photos, *base, *arguments)
        assert done.returncode == 0, done.stderr
        lines = lines_of((tmp_path / "dump").read_text())
        assert Counter(label for line in lines for label in line["label"]) == counts
    assert penstock_here("iterate", photos, *base, "--subset", "all").returncode == 2
    assert penstock_here("iterate", photos, *base, "--subset", "9:3").returncode == 3


def test_parity_compares_a_part_with_a_cache_of_the_whole(photos: Path, tmp_path: Path) -> None:
    record = tmp_path / "parity.json"
    arguments = ("--size", 16, "--batch-size", 4, "--subset", "::2", "--json", record)
    done = penstock_here("parity", photos, "--cache", tmp_path / "all.h5", *arguments)
    assert done.returncode in (0, 3), done.stderr  # 3: at this size DALI's pixels may be outside the tolerance
    assert json.loads(record.read_text())["data"]["images"] == 12
    assert len(open_cache(tmp_path / "all.h5")) == 24  # of all images, not of the compared part


def test_a_benchmark_measures_a_part_and_a_cache_of_the_whole(photos: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "all.h5")
    options = {"subset": "::2", "max_per_class": 4}
    data = BenchData(photos, BenchSettings(size=16, batch_size=4, cache=cache, data_options=options))
    assert len(data.source) == 12
    found = data.opener.source(cached=True)
    assert isinstance(found, Data)
    assert (len(found), len(found.parts[0])) == (12, 24)
    assert found.fingerprint == data.source.fingerprint


@pytest.mark.parametrize(
    "command",
    [
        ("iterate", "x.lst", "--dump", "dump", "--size", 16, "--batch-size", 4, "--workers", 0),
        ("cache", "build", "x.lst", "cache.h5", "--workers", 0),
        ("doctor", "x.lst", "--size", 16),
        ("parity", "x.lst", "--size", 16, "--batch-size", 4, "--images", 8),
        ("train", "x.lst", "--device", "cpu", "--find-batch-size"),  # refused later, for lack of a budget
    ],
    ids=lambda command: command[0],
)
def test_options_of_a_table_reach_it(
    tables: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[Any, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.lst").touch()
    arguments = ("--image", "file", "--label", "json:cls", "--root", tmp_path, "--classes", "a,b")
    done = penstock_here(*command, *arguments)
    assert done.returncode in (0, 2, 3, 7), done.stderr  # 3 from parity, 7 from doctor: findings do not matter here
    assert tables == [{"image": "file", "label": "json:cls", "root": str(tmp_path), "classes": (b"a", b"b")}]


def test_validation_data_gets_the_options_of_its_kind(
    tables: list[dict[str, Any]], photos: Path, tmp_path: Path
) -> None:
    for name in ("train.lst", "val.rows"):
        (tmp_path / name).touch()
    settings = TrainSettings(model="resnet18", batch_size=4)
    empty: dict[str, Any] = {"training": {}, "policy": {}, "loading": {}, "cache": None}
    common: dict[str, Any] = {"settings": settings, "size": 16, **empty}
    options = {"label": "species", "max_per_class": 2}
    TrainingJob(data=tmp_path / "train.lst", validation=tmp_path / "val.rows", data_options=options, **common)
    assert tables == [{"label": "species"}, {"label": "species"}]
    other = TrainingJob(
        data=tmp_path / "train.lst",
        validation=photos,
        data_options=options,
        validation_options={"subset": "::2"},
        **common,
    )
    assert (len(other.source), len(other.held_out or ())) == (6, 12)
    assert tables[2:] == [{"label": "species"}]
    plain = TrainingJob(data=photos, validation=photos, data_options={"max_per_class": 2}, **common)
    assert (len(plain.source), len(plain.held_out or ())) == (6, 24)


def test_options_of_requests_apply_only_to_urls() -> None:
    options = {"requests": 9, "label": "cls", "subset": ":9", "root": "/a"}
    assert select_options("http://127.0.0.1:9/{0..3}.tar", options) == {"requests": 9, "label": "cls"}
    assert select_options("some/0.tar", options) == {"label": "cls"}
    assert select_options("some/0.csv", options) == {"label": "cls", "root": "/a"}
