"""Unwritable places are reported before the work begins, not after it."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import penstock_here

NOWHERE = ("no", "data")  # every command would report this missing data later
OPTIONS = [
    ("train", "--checkpoint"),
    ("train", "--json"),
    ("train", "--find-lr"),
    ("bench", "--json"),
    ("bench", "--report"),
    ("iterate", "--ledger"),
    ("iterate", "--state-out"),
    ("ablate", "--json"),
    ("parity", "--json"),
    ("doctor", "--json"),
    ("cache advise", "--json"),
]


@pytest.mark.parametrize(("command", "option"), OPTIONS, ids=lambda words: words)
def test_an_unwritable_place_is_reported_before_the_data_is_opened(tmp_path: Path, command: str, option: str) -> None:
    (tmp_path / "file").touch()
    done = penstock_here(*command.split(), tmp_path / "no data", option, tmp_path / "file" / "x")
    assert done.returncode == 3
    assert "LoaderError[E-ACCESS]" in done.stderr
    assert "file/x' cause=this file cannot be written: its folder is a file: fix=choose another path" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_page_of_a_record_is_checked_first(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = penstock_here("report", tmp_path / "no record", tmp_path / "file" / "x.html")
    assert "E-ACCESS" in done.stderr


@pytest.mark.parametrize("place", ["/dev/null", "."])
def test_a_checkpoint_does_not_replace_a_special_file(tmp_path: Path, place: str) -> None:
    before = Path(place).stat().st_mode
    done = penstock_here("train", tmp_path / "no data", "--checkpoint", place)
    assert (done.returncode, "E-ACCESS" in done.stderr) == (3, True)
    assert Path(place).stat().st_mode == before


def test_only_the_writing_rank_checks(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "x"
    done = penstock_here("train", tmp_path / "no data", "--json", place, "--epochs", 0, env={"RANK": "1"})
    assert "E-ACCESS" not in done.stderr
