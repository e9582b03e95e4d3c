"""Twenty thousand damaged images: no crash, no hang, no other exception, one verdict from all decoders."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import image_fuzz
import pytest

from penstock.pipelines.errors import ERROR_CODES

NUM_INPUTS = 22_000  # a tenth is neither JPEG nor PNG
NUM_WORKERS = 2
ROUNDS = 2  # each worker process is used for a part of the inputs only, so that a crash costs little


def start(first: int, last: int, folder: Path) -> tuple[subprocess.Popen[str], Path]:
    progress = folder / f"progress-{first}"
    task = json.dumps({"first": first, "last": last, "progress": str(progress)})
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        "-W",
        "error",
        "-W",
        "ignore:16-bit images",
        str(image_fuzz.__file__),
        task,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True), progress


def finish(process: subprocess.Popen[str], progress: Path) -> dict[str, object]:
    try:
        out, errors = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        pytest.fail(f"hangs at input {progress.read_text('ascii')}")
    at = progress.read_text("ascii") if progress.exists() else "none"
    assert process.returncode == 0, f"exit code {process.returncode} at input {at}: {errors[-3000:]}"
    return dict(json.loads(out))


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    folder = tmp_path_factory.mktemp("fuzz")
    bounds = [round(i * NUM_INPUTS / (NUM_WORKERS * ROUNDS)) for i in range(NUM_WORKERS * ROUNDS + 1)]
    found = []
    for turn in range(ROUNDS):
        mine = range(turn * NUM_WORKERS, (turn + 1) * NUM_WORKERS)
        running = [start(bounds[i], bounds[i + 1], folder) for i in mine]
        found += [finish(*one) for one in running]
    return found


def test_nothing_but_loader_errors_and_one_verdict(reports: list[dict[str, object]]) -> None:
    findings = [finding for report in reports for finding in report["findings"]]  # type: ignore[attr-defined]
    assert findings == []


def test_enough_was_accepted_and_refused_in_each_way(reports: list[dict[str, object]]) -> None:
    verdicts: Counter[str] = sum((Counter(report["verdicts"]) for report in reports), Counter())  # type: ignore[arg-type]
    assert verdicts.total() == NUM_INPUTS
    assert set(verdicts) - {"accepted"} <= set(ERROR_CODES)
    for verdict in ("accepted", "E-CORRUPT", "E-TRUNC", "E-UNSUPPORTED", "E-BOMB", "E-FORMAT"):
        assert verdicts[verdict] > 10, verdicts
    assert 0.2 < verdicts["accepted"] / NUM_INPUTS < 0.8
