"""The search over backends and their settings, on simulated machines: choice, budgets, time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from penstock.bench.probe.search.budgets import Budgets
from penstock.bench.probe.search.candidate import Candidate
from penstock.bench.probe.search.settings_sweep import FINAL_TRIALS, SearchResult, SearchSpace, SettingsSweep
from penstock.bench.probe.search.trials import Trial
from penstock.bench.record.bench_record import KnobValue
from penstock.pipelines.errors import LoaderError

WORKERS = (2, 0, 1, 3, 4)
OPTIONS: dict[str, dict[str, tuple[KnobValue, ...]]] = {
    "hdf5": {"workers": WORKERS, "decoder": ("a", "b"), "prefetch": (3, 1, 6)},
    "torch": {"workers": WORKERS, "decoder": ("b", "a"), "prefetch": (3, 1, 6)},
    "dali": {"workers": (2, 3), "readers": (1, 2), "prefetch": (2, 3)},
}
TRIAL_S = 2.0


def space_of(
    backend: str, options: dict[str, tuple[KnobValue, ...]] | None = None, *, fixed: bool = False
) -> SearchSpace:
    options = OPTIONS[backend] if options is None else options
    first = {"workers": 2, **{name: values[0] for name, values in options.items() if name != "decoder"}}
    decoder = str(options.get("decoder", ("auto",))[0])
    start = Candidate(backend=backend, decoder=decoder, cached=backend == "hdf5", options=first)
    return SearchSpace(start=start, options=options, fixed_workers=fixed)


SPACES = [space_of(backend) for backend in OPTIONS]


class Machine:
    """Measures candidates: each worker keeps a CPU busy and takes 50 MB (a thread 5), each batch ahead 10."""

    def __init__(
        self,
        rate: Callable[[Candidate], float],
        *,
        seconds: float = 1e9,
        budgets: Budgets | None = None,
        noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._rate, self._noise, self._random = rate, noise, np.random.default_rng(seed)
        self.trials: list[str] = []
        self.said: list[str] = []
        self.search = SettingsSweep(self.measure, budgets, lambda: self.clock / seconds, self.said.append)

    @property
    def clock(self) -> float:
        return TRIAL_S * len(self.trials)

    def measure(self, candidate: Candidate) -> Trial:
        self.trials.append(candidate.describe())
        each = 5 if candidate.options.get("workers_are") == "threads" else 50
        ahead = 10 * int(candidate.options.get("prefetch") or 0)
        return Trial(
            images_per_s=self._rate(candidate) * self._random.lognormal(0, self._noise),
            cpu_cores=max(1.0, candidate.workers * 1.01),
            memory_mb=20.0 + candidate.workers * (each + ahead),
        )

    def run(self, spaces: list[SearchSpace] = SPACES) -> SearchResult:
        return self.search.run(spaces)

    def why(self, part: str) -> str:
        return next(log.why for name, log in self.search.logs.items() if part in name and log.why)


def rate(candidate: Candidate) -> float:
    """hdf5 is the fastest, with decoder b and three workers; decoder b is the best of torch too."""
    value = {"hdf5": 1000.0, "torch": 850.0, "dali": 400.0}[candidate.backend]
    value *= {0: 0.4, 1: 0.5, 2: 1.0, 3: 1.1, 4: 0.9}[candidate.workers]
    value *= 1.2 if candidate.decoder == "b" else 1.0
    return value * {1: 0.8, 6: 1.04}.get(int(candidate.options["prefetch"] or 0), 1.0)


def test_the_best_values_of_all_options_are_combined_for_each_backend() -> None:
    machine = Machine(rate)
    found = machine.run()
    assert found.chosen.describe() == "hdf5 of the cache, b, workers 3, prefetch 6"
    assert [other.describe() for other in found.others] == ["torch of the files, b, workers 3, prefetch 6"]
    assert found.untried == {}
    assert machine.why("dali") == (
        "0.39 of torch of the files, b, workers 2, prefetch 3 at its first trials: not searched further"
    )
    assert sum("dali" in name for name in machine.search.logs) == 1
    assert machine.said == machine.trials


def test_single_changes_come_before_combinations_and_without_workers_nothing_else_is_tried() -> None:
    machine = Machine(rate)
    machine.run([space_of("torch", {"workers": (2, 3, 0), "prefetch": (3, 6)})])
    settings = [name.partition("workers ")[2].replace(" prefetch ", "") for name in machine.search.logs]
    assert settings == ["2,3", "3,3", "2,6", "0,3", "3,6"]


def test_the_finalists_are_measured_again_in_alternating_order_until_each_has_its_trials() -> None:
    space = space_of("torch", {"workers": tuple(range(2, 18))})
    machine = Machine(lambda candidate: 100.0 * candidate.workers)
    assert machine.run([space]).chosen.workers == 17
    assert sorted(Counter(machine.trials).values()) == [1] * 12 + [FINAL_TRIALS] * 4
    workers = [int(trial.rpartition(" ")[2]) for trial in machine.trials]
    assert workers[16:24] == [14, 15, 16, 17, 17, 16, 15, 14]


def test_the_medians_of_all_trials_decide() -> None:
    """One lucky trial does not decide."""
    rates = {2: iter([100.0] * 9), 3: iter([300.0, 80.0, 80.0, 80.0]), 4: iter([95.0] * 9), 5: iter([90.0] * 9)}
    machine = Machine(lambda candidate: next(rates[candidate.workers]))
    assert machine.run([space_of("torch", {"workers": (2, 3, 4, 5)})]).chosen.workers == 2


@pytest.mark.parametrize(("backend", "others"), [("torch", ["hdf5"]), ("dali", [])])
def test_any_backend_may_win_by_its_settings_or_from_the_start(backend: str, others: list[str]) -> None:
    def boosted(candidate: Candidate) -> float:
        gain = {"torch": 2.0 if candidate.workers == 3 else 1.0, "dali": 10.0}[backend]
        return rate(candidate) * (gain if candidate.backend == backend else 1.0)

    found = Machine(boosted).run()
    assert (found.chosen.backend, [other.backend for other in found.others]) == (backend, others)


def test_noise_costs_little_of_the_rate_and_the_search_is_short() -> None:
    """If single trials are 8 % off: 0.95 of the best, in less time than a pass over the grid."""
    grid = []
    for backend in ("hdf5", "torch"):
        for values in product(*OPTIONS[backend].values()):
            candidate = space_of(backend).start
            for name, value in zip(OPTIONS[backend], values, strict=True):
                candidate = candidate.with_option(name, value)
            grid.append(candidate)
    best, shares = max(map(rate, grid)), []
    for seed in range(20):
        machine = Machine(rate, noise=0.08, seed=seed, seconds=0.8 * TRIAL_S * len(grid))
        shares.append(rate(machine.run(SPACES[:2]).chosen) / best)
        assert len(machine.trials) <= 0.8 * len(grid) + 1
    assert min(shares) > 0.75
    assert np.mean(shares) > 0.95


@pytest.mark.parametrize("seconds", [2, 10, 30, 60])
def test_the_search_ends_in_time_and_lists_untried_options(seconds: float) -> None:
    machine = Machine(rate, seconds=seconds)
    found = machine.run()
    assert machine.clock <= seconds + TRIAL_S  # the trial under way
    if seconds == 2:
        assert found.chosen == SPACES[0].start
        assert found.untried == {"torch": (), "dali": (), "hdf5": ("workers", "decoder", "prefetch")}
    if seconds == 30:
        assert found.untried == {"hdf5": ("workers", "prefetch"), "torch": ("workers", "decoder", "prefetch")}
    if seconds == 60:
        assert rate(found.chosen) > rate(SPACES[0].start)


@pytest.mark.parametrize(
    ("budgets", "wanted"),
    [
        (Budgets(max_cpu=1.5), "hdf5 of the cache, b, workers 1, prefetch 6"),
        (Budgets(max_cpu=1), "hdf5 of the cache, b, workers 1, prefetch 6"),
        (Budgets(max_memory=100), "hdf5 of the cache, b, workers 2, prefetch 3, workers_are threads"),
        (Budgets(max_memory=50), "hdf5 of the cache, b, workers 2, prefetch 1, workers_are threads"),
        (Budgets(max_memory=30), "hdf5 of the cache, b, workers 0, prefetch 1, workers_are threads"),
    ],
    ids=str,
)
def test_candidates_over_a_budget_are_reduced_and_never_chosen(budgets: Budgets, wanted: str) -> None:
    machine = Machine(rate, budgets=budgets)
    found = machine.run(SPACES[:2])
    assert found.chosen.describe() == wanted
    assert any(log.why.startswith("over budget: ") for log in machine.search.logs.values())
    for candidate in found.all:
        trial = machine.search.log(candidate).result
        assert trial is not None
        assert budgets.refuses(trial) == ""


def test_a_budget_of_cpus_leaves_numbers_of_workers_untried_that_would_break_it() -> None:
    machine = Machine(rate, budgets=Budgets(max_cpu=2))
    machine.run(SPACES[:1])
    assert not any("workers 3" in name or "workers 4" in name for name in machine.search.logs)
    idle = Budgets(max_cpu=2)
    assert not idle.too_many(3, SPACES[0].start, Trial(images_per_s=1.0, cpu_cores=1.2))  # 0.6 each
    assert idle.too_many(4, SPACES[0].start, Trial(images_per_s=1.0, cpu_cores=1.2))


def test_where_nothing_fits_the_smallest_need_is_reported() -> None:
    with pytest.raises(
        ValueError, match=r"^nothing that fits was found; smallest need: .*workers 0.*: over budget: 20 MB, "
    ):
        Machine(rate, budgets=Budgets(max_memory=10)).run()
    with pytest.raises(ValueError, match=r"smallest need: .*workers 0.*1\.00 processors, --max-cpu is 0\.5$"):
        Machine(rate, budgets=Budgets(max_cpu=0.5)).run()
    fixed = [space_of("torch", {"prefetch": (3, 1)}, fixed=True)]
    with pytest.raises(ValueError, match=r"smallest need: .*workers 2, prefetch 3: over budget: 2\.02 processors"):
        Machine(rate, budgets=Budgets(max_cpu=1)).run(fixed)
    with pytest.raises(ValueError, match="in the available time"):
        Machine(rate, budgets=Budgets(max_memory=10), seconds=3).run()


def test_a_backend_that_cannot_be_opened_is_left_out_unless_it_is_the_only_one() -> None:
    def broken(candidate: Candidate) -> float:
        if candidate.backend == "hdf5":
            raise LoaderError("E-STALE", "the cache is of other data")
        return rate(candidate)

    machine = Machine(broken)
    assert machine.run().chosen.backend == "torch"
    assert machine.why("hdf5") == "the cache is of other data"
    with pytest.raises(LoaderError, match="other data"):
        Machine(broken).run(SPACES[:1])


def test_a_candidate_that_fails_later_drops_out() -> None:
    trials = Counter[int]()

    def failing(candidate: Candidate) -> float:
        trials[candidate.workers] += 1
        if candidate.workers == 4 and trials[4] == 2:
            raise LoaderError("E-MEM", "four do not fit any more")
        return 100.0 * candidate.workers

    machine = Machine(failing)
    assert machine.run([space_of("torch", {"workers": (2, 3, 4)})]).chosen.workers == 3
    assert machine.why("workers 4") == "four do not fit any more"


def test_without_options_only_the_starts_are_compared() -> None:
    machine = Machine(rate)
    found = machine.run([SearchSpace(start=space.start) for space in SPACES[::2]])
    assert (found.chosen, found.others) == (SPACES[0].start, ())
    assert len(machine.search.logs) == 2
