"""`penstock iterate` from outside: the guarantees of the stream, checked across processes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from command_line import lines_of, penstock, penstock_here
from photo_folder import photo, write_folder
from repaired_jpegs import cut

NUM_PHOTOS = 61
EPOCHS = 2
COLUMNS = ("index", "label", "crop", "flip", "crc32")
BASE = ("--size", 32, "--batch-size", 12, "--seed", 7, "--epochs", EPOCHS)

Record = dict[str, Any]


@pytest.fixture(scope="module")
def reference(photos: Path) -> list[Record]:
    """Two epochs, served by a separate process without workers."""
    return iterate_outside(photos, "--workers", 0)


@pytest.fixture
def iterate(tmp_path: Path) -> Callable[..., tuple[int, list[Record]]]:
    """Runs the command in this process; returns exit code and records."""

    def run(data: Path, *arguments: object, base: tuple[object, ...] = BASE) -> tuple[int, list[Record]]:
        dump = tmp_path / "dump.jsonl"
        dump.unlink(missing_ok=True)
        done = penstock_here("iterate", data, *base, "--dump", dump, *arguments)
        sys.stderr.write(done.stderr)
        return done.returncode, lines_of(dump.read_text()) if dump.exists() else []

    return run


def iterate_outside(data: Path, *arguments: object) -> list[Record]:
    """The records of `penstock iterate` in a separate process."""
    done = penstock("iterate", data, *BASE, *arguments)
    assert done.returncode == 0, done.stderr
    return lines_of(done.stdout)


def joined(parts: Iterable[Record]) -> Record:
    """The global batch that consists of these parts of the ranks, in order."""
    parts = list(parts)
    assert len({(part["epoch"], part["step"]) for part in parts}) == 1
    columns = {name: [value for part in parts for value in part[name]] for name in COLUMNS}
    return {"epoch": parts[0]["epoch"], "step": parts[0]["step"], **columns}


# ---- one stream ----


def test_records_follow_the_contract(reference: list[Record]) -> None:
    steps = NUM_PHOTOS // 12
    assert [(r["epoch"], r["step"]) for r in reference] == [(e, s) for e in range(EPOCHS) for s in range(steps)]
    for record in reference:
        assert list(record) == ["epoch", "step", *COLUMNS]
        assert all(len(record[name]) == 12 for name in COLUMNS)
        assert all(type(i) is int and 0 <= i < NUM_PHOTOS for i in record["index"])
        assert all(len(window) == 4 and all(type(v) is int for v in window) for window in record["crop"])
        assert all(type(flip) is bool for flip in record["flip"])
        assert all(0 <= crc < 1 << 32 for crc in record["crc32"])
    for epoch in range(EPOCHS):
        index = [i for r in reference if r["epoch"] == epoch for i in r["index"]]
        assert len(set(index)) == len(index) == steps * 12
    assert reference[0]["index"] != reference[steps]["index"]


def test_new_process_writes_the_same_lines(photos: Path, reference: list[Record]) -> None:
    done = penstock("iterate", photos, *BASE, "--workers", 2, env={"PYTHONHASHSEED": "7"})
    assert done.returncode == 0
    assert lines_of(done.stdout) == reference
    totals = [f"epoch {epoch}: planned=60 delivered=60 replaced=0" for epoch in range(EPOCHS)]
    assert done.stderr.splitlines() == totals


# ---- resume ----


def test_resume_with_another_world_size_and_workers(
    photos: Path, reference: list[Record], iterate: Callable[..., Any], tmp_path: Path
) -> None:
    """Three ranks, set by a launcher's variables, then one with 2 workers. The seed comes from the state."""
    base, state, parts = ("--size", 32, "--epochs", EPOCHS), tmp_path / "state.json", []
    for rank in range(3):
        own = ("--seed", 7, "--batch-size", 4, "--workers", 0, "--stop-after", 3, "--state-out", state)
        done = penstock_here("iterate", photos, *base, *own, env={"WORLD_SIZE": "3", "RANK": str(rank)})
        assert done.returncode == 0, done.stderr
        parts.append(lines_of(done.stdout))
    served = [joined(part) for part in zip(*parts, strict=True)]
    code, lines = iterate(photos, "--batch-size", 12, "--workers", 2, "--state-in", state, base=base)
    assert (code, served + lines) == (0, reference)


@pytest.mark.parametrize("content", ["", "[]", "\udcff", '{"epoch": 1}'])
def test_invalid_state_is_refused(
    photos: Path, iterate: Callable[..., Any], tmp_path: Path, capfd: pytest.CaptureFixture[str], content: str
) -> None:
    state = tmp_path / "state.json"
    state.write_bytes(content.encode(errors="surrogateescape"))
    assert iterate(photos, "--workers", 0, "--state-in", state) == (2, [])
    errors = capfd.readouterr().err
    assert errors.startswith("LoaderError[E-STATE]")
    assert errors.count("\n") == 1


def test_a_state_of_another_stream_is_refused_unless_not_strict(photos: Path, tmp_path: Path, iterate: Any) -> None:
    state = tmp_path / "state.json"
    assert iterate(photos, "--workers", 0, "--stop-after", 1, "--state-out", state)[0] == 0
    went_on = ("--workers", 0, "--stop-after", 1, "--state-in", state)
    assert iterate(photos, "--seed", 8, base=(*BASE[:4], *went_on)) == (2, [])
    other = (*BASE[2:], "--size", 33, *went_on)
    assert iterate(photos, base=other)[0] == 2
    code, records = iterate(photos, "--no-strict", base=other)
    assert (code, [record["step"] for record in records]) == (0, [1])


@pytest.mark.parametrize("workers", [0, 2])
def test_the_ledger_lists_every_replaced_sample(
    iterate: Callable[..., Any], tmp_path: Path, capfd: pytest.CaptureFixture[str], workers: int
) -> None:
    root, ledger = write_folder(tmp_path / "damaged", 24, classes=1), tmp_path / "ledger.json"
    (root / "class0" / "0003.jpg").write_bytes(b"")
    (root / "class0" / "0017.jpg").write_bytes(photo(17)[:200])
    options = ("--workers", workers, "--no-shuffle", "--ledger", ledger)
    code, lines = iterate(root, *options, "--on-bad-sample", "replace")
    assert code == 0
    index = [i for r in lines if r["epoch"] == 0 for i in r["index"]]
    assert index == [4 if i == 3 else 18 if i == 17 else i for i in range(24)]
    for epoch, entry in enumerate(json.loads(ledger.read_text())):
        counts = {name: entry[name] for name in ("epoch", "planned", "delivered", "replaced")}
        assert counts == {"epoch": epoch, "planned": 24, "delivered": 22, "replaced": 2}
        assert [(b["sample"], b["code"], b["substitute"]) for b in entry["bad"]] == [
            (3, "E-EMPTY", 4),
            (17, "E-TRUNC", 18),
        ]
        assert all(b["path"].startswith(str(root)) and b["cause"] for b in entry["bad"])
    assert "epoch 1: planned=24 delivered=22 replaced=2" in capfd.readouterr().err
    ledger.unlink()
    code, lines = iterate(root, *options, "--on-bad-sample", "replace", "--max-bad", 1)
    assert (code, len(lines)) == (3, 1)
    assert capfd.readouterr().err.startswith("LoaderError[E-MAXBAD]")
    assert [b["sample"] for b in json.loads(ledger.read_text())[0]["bad"]] == [3]  # also for a failed run
    code, lines = iterate(root, *options)
    assert (code, lines) == (3, [])
    assert capfd.readouterr().err.startswith("LoaderError[E-EMPTY] sample=3 ")


def test_totals_and_ledger_list_repaired_images(
    iterate: Callable[..., Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root, ledger = write_folder(tmp_path / "repaired", 8, classes=1), tmp_path / "ledger.json"
    (root / "class0" / "0003.jpg").write_bytes(cut(photo(3), 0))
    options = ("--workers", 0, "--no-shuffle", "--ledger", ledger)
    assert iterate(root, *options)[0] == 0
    assert "epoch 1: planned=8 delivered=8 replaced=0 repaired=1\n" in capfd.readouterr().err
    assert [(r["sample"], r["code"]) for r in json.loads(ledger.read_text())[0]["repairs"]] == [(3, "E-REPAIRED")]
    assert iterate(root, *options, "--on-repaired", "replace")[1][0]["index"][3] == 4
    assert "planned=8 delivered=7 replaced=1 (E-REPAIRED 1)\n" in capfd.readouterr().err
    assert iterate(root, *options, "--on-repaired", "raise")[0] == 3


def test_the_filter_changes_the_pixels_alone(photos: Path, iterate: Callable[..., tuple[int, list[Record]]]) -> None:
    seen = set()
    for name in ("bilinear", "bicubic", "random", "box"):
        code, lines = iterate(photos, "--interpolation", name, "--workers", 0, "--epochs", 1)
        assert code == 0
        seen.add(json.dumps([line.pop("crc32") for line in lines]))
        seen.add(f"the rest: {json.dumps(lines)}")
    assert len(seen) == 5
    assert iterate(photos, "--interpolation", "random", "--eval")[0] == 2
