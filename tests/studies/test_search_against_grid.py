"""The search's mark: what the grid holds, and what is compared in the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import search_against_grid as module
from photo_folder import write_folder
from search_against_grid import Plan, grid_of, run_study

from penstock.bench.record.record import BenchSettings
from penstock.bench.search.candidate import BenchData, Candidate
from penstock.bench.search.halving import Winners
from penstock.bench.search.search import SearchResult
from penstock.bench.search.turn import Turn
from penstock.pipelines import LoaderError


def test_the_grid_holds_every_combination_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "all_decoders", lambda: ["a", "b"])
    found = list(grid_of(BenchSettings(), [("hdf5", True), ("torch", False), ("dali", True)], 2))
    names = [candidate.describe() for candidate in found]
    assert len(set(names)) == len(names)
    count = {backend: sum(c.backend == backend for c in found) for backend in ("hdf5", "torch", "dali")}
    assert count["hdf5"] == 2 * (1 + 4 * 3 * 2)  # decoders x (no workers + workers x prefetch x what they are)
    assert count["torch"] == 2 * (1 + 4 * 3)
    assert count["dali"] > 4
    assert {candidate.workers for candidate in found} == {0, 1, 2, 3, 4}
    assert "hdf5 of the cache, b, workers 3, prefetch 6, workers_are threads" in names


def rate(candidate: Candidate) -> float:
    return 100.0 * candidate.workers + (50.0 if candidate.options.get("prefetch") == 6 else 0.0)


class FakeMeter:
    """Measures at once; one number of workers cannot be opened."""

    measured: list[str] = []  # noqa: RUF012

    def __init__(self, *_: object) -> None:
        self.seconds = 1.0

    def measure(self, candidate: Candidate) -> Turn:
        if candidate.workers == 2:
            raise LoaderError("E-MEM", "two do not fit")
        self.measured.append(candidate.describe())
        return Turn(images_per_s=rate(candidate))


@pytest.mark.parametrize(("workers", "ratio"), [(4, 1.0), (3, 300 / 450)])
def test_the_choice_is_compared_with_the_best_of_the_grid_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, ratio: float
) -> None:
    prefetch = 6 if workers == 4 else 3
    chosen = Candidate(backend="torch", decoder="a", options={"workers": workers, "prefetch": prefetch})
    searched = SearchResult(winners=Winners(chosen=chosen), tried=(), notes=(), seconds=2.0)
    monkeypatch.setattr(module, "all_decoders", lambda: ["a"])
    monkeypatch.setattr(module, "available_backends", lambda *_: [("torch", False)])
    monkeypatch.setattr(module, "start_workers", lambda *_: 2)
    monkeypatch.setattr(module, "search_settings", lambda *_: searched)
    monkeypatch.setattr(module, "TurnMeter", FakeMeter)
    monkeypatch.setattr(FakeMeter, "measured", [])
    settings = BenchSettings(batch_size=8, size=32)
    data = BenchData(write_folder(tmp_path, 16), settings)
    said: list[tuple[Any, ...]] = []
    result = run_study(data, settings, Plan(passes=2, rounds=4, best=2), lambda *now: said.append(now))
    assert len(result.grid) == 1 + 3 * 3  # those of two workers are left out
    assert result.rate_ratio == pytest.approx(ratio)
    finalists = list(result.rates)
    assert finalists[0] == chosen.describe()
    assert [len(found) for found in result.rates.values()] == [4] * len(finalists)
    assert FakeMeter.measured[-2 * len(finalists) :] == [*finalists, *finalists[::-1]]
    assert result.time_ratio == 2.0 / result.grid_seconds
    assert not result.holds  # this grid takes no time at all
    record = json.dumps(module._record(settings, data, result))
    assert str(tmp_path) not in record
    assert "rate_ratio" in record
