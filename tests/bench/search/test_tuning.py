"""Duels and the search by them, on rates that a test makes up: what wins, what does not, what is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from penstock.bench.record.record import Options
from penstock.bench.search.tuning import Contest, RefusedError, Rules, Trial, search
from penstock.pipelines.errors import LoaderError


class Machine:
    """Opens options and measures them: `rate(options, number of the measurement)`. Counts what is open."""

    def __init__(self, rate: Callable[[Options, int], float], *, limit: int = 10**9, cores: float = 1.0) -> None:
        self._rate, self.open, self.asked, self.said = rate, 0, 0, list[str]()
        self.rules: Rules[Options] = Rules(
            opened=self.opened,
            name=str,
            refuses=lambda trial: "too many processors" if (trial.cpu_cores or 0) > cores else "",
            out_of_time=lambda: self.asked >= limit,
            say=self.said.append,
        )

    @contextmanager
    def opened(self, options: Options) -> Iterator[Callable[[], Trial]]:
        if options.get("readers") == 64:
            raise LoaderError("E-MEM", "64 readers do not fit")
        self.open += 1
        assert self.open <= 2
        try:
            yield lambda: self._measure(options)
        finally:
            self.open -= 1

    def _measure(self, options: Options) -> Trial:
        self.asked += 1
        cores = 0.1 * float(options["readers"] or 0)
        return Trial(images_per_s=self._rate(options, self.asked), cpu_cores=cores, memory_mb=100.0 * self.open)

    def whys(self) -> dict[object, str]:
        return {attempt.contestant["readers"]: attempt.why for attempt in self.rules.attempts.values() if attempt.why}


def of_table(**gains: dict[object, float]) -> Callable[[Options, int], float]:
    def rate(options: Options, number: int) -> float:
        product = 100.0
        for knob, value in options.items():
            product *= gains[knob][value]
        return product

    return rate


def test_the_fastest_value_of_each_knob_is_taken_and_all_are_written_down() -> None:
    gains = of_table(
        readers={1: 1.0, 2: 1.3, 4: 1.2}, prefetch={2: 1.0, 3: 0.8}, padding={None: 1.0, 1 << 20: 1.1, 2: 0.5}
    )
    machine = Machine(gains)
    space = {"readers": (1, 2, 4), "prefetch": (2, 3), "padding": (None, 1 << 20, 2)}
    assert search(space, machine.rules) == {"readers": 2, "prefetch": 2, "padding": 1 << 20}
    rates = {
        name: attempt.trial.images_per_s
        for name, attempt in machine.rules.attempts.items()
        if attempt.trial is not None
    }
    assert list(rates.values()) == pytest.approx([100, 130, 120, 104, 143, 65])
    assert (machine.open, machine.asked, len(machine.said)) == (0, 4 + 2 + 2 + 4 + 2, machine.asked)
    assert machine.said[1] == str({"readers": 2, "prefetch": 2, "padding": None})
    assert search({}, machine.rules) == {}


def test_numbers_are_climbed_from_where_the_search_begins() -> None:
    def tried(space: tuple[int, ...], peak: int) -> tuple[object, list[object]]:
        machine = Machine(lambda options, number: 100.0 / (1 + abs(int(options["readers"] or 0) - peak)))
        best = search({"readers": space}, machine.rules)
        return best["readers"], [attempt.contestant["readers"] for attempt in machine.rules.attempts.values()]

    assert tried((4, 0, 1, 2, 3, 5, 8), 4) == (4, [4, 5, 3])
    assert tried((4, 0, 1, 2, 3, 5, 8), 8) == (8, [4, 5, 8])
    assert tried((4, 0, 1, 2, 3, 5, 8), 2) == (2, [4, 5, 3, 2, 1])


def test_a_step_too_small_to_tell_does_not_end_the_way() -> None:
    """From 32 to 31 nothing is seen; that 16 are faster is."""
    machine = Machine(lambda options, number: {16: 150.0, 8: 90.0}.get(int(options["readers"] or 0), 100.0), cores=9)
    assert search({"readers": (32, 0, 8, 16, 31, 33)}, machine.rules) == {"readers": 16}
    assert [attempt.contestant["readers"] for attempt in machine.rules.attempts.values()] == [32, 33, 31, 16, 8]


@pytest.mark.parametrize(
    ("rate", "asked"),
    [
        (lambda options, number: 102.0 if options["readers"] == 2 else 100.0, 4),  # a lead within the noise
        (lambda options, number: 100.0 * 1.2**number, 4),  # a machine that gets faster
        (lambda options, number: 100.0 * 0.8**number, 2),
        (lambda options, number: 200.0 if number == 2 else 100.0, 6),  # one lucky measurement
        (lambda options, number: 50.0 if number == 1 else 100.0, 6),
        (lambda options, number: 96.0 if options["readers"] == 2 else 100.0, 2),  # clear at once
    ],
    ids=["noise", "faster", "slower", "lucky", "unlucky", "behind"],
)
def test_neither_noise_nor_drift_chooses(rate: Callable[[Options, int], float], asked: int) -> None:
    machine = Machine(rate)
    assert search({"readers": (1, 2)}, machine.rules) == {"readers": 1}
    assert (machine.open, machine.asked) == (0, asked)


def test_one_bad_pair_of_three_does_not_cost_the_lead() -> None:
    machine = Machine(lambda options, number: 120.0 * (0.8 if number == 3 else 1) if options["readers"] == 2 else 100.0)
    assert search({"readers": (1, 2)}, machine.rules) == {"readers": 2}
    assert machine.asked == 6


def test_a_value_that_fails_is_left_out_with_its_cause() -> None:
    def rate(options: Options, number: int) -> float:
        if options["readers"] == 2 and number > 2:
            raise LoaderError("E-TIMEOUT", "silent for a second")
        return 100.0 + len(str(options["readers"])) * 100

    machine = Machine(rate)
    assert search({"readers": (1, 64, 2)}, machine.rules) == {"readers": 1}
    machine = Machine(lambda options, number: rate(options, 3) if options["readers"] == 2 else 100.0)
    values: tuple[int | None, ...] = (1, 64, 2, None)  # no ladder: each is tried
    assert search({"readers": values}, machine.rules) == {"readers": 1}
    assert machine.whys() == {64: "64 readers do not fit", 2: "silent for a second"}
    assert machine.open == 0


@pytest.mark.parametrize("error", [LoaderError("E-MAXBAD", "too many"), KeyboardInterrupt()], ids=["bad", "Ctrl-C"])
def test_what_fails_with_the_best_too_is_raised_and_nothing_stays_open(error: BaseException) -> None:
    def rate(options: Options, number: int) -> float:
        if number == 4:
            raise error
        return 100.0

    machine = Machine(rate)
    with pytest.raises(type(error)):
        search({"readers": (1, 2)}, machine.rules)
    assert (machine.open, machine.asked) == (0, 4)


def test_who_takes_more_than_allowed_is_refused_at_its_first_measurement() -> None:
    machine = Machine(lambda options, number: 100.0 * int(options["readers"] or 0), cores=0.25)
    with Contest({"readers": 2}, machine.rules, check=True) as contest:
        duel = contest.challenge({"readers": 3})
        assert duel.refused == Trial(images_per_s=300.0, cpu_cores=pytest.approx(0.3), memory_mb=200.0)
        assert contest.best == {"readers": 2}
        assert contest.challenge({"readers": 3}).refused is None  # tried already
    assert (machine.open, machine.asked) == (0, 3)
    assert machine.whys() == {3: "too many processors"}
    with pytest.raises(RefusedError, match="too many"), Contest({"readers": 3}, machine.rules, check=True):
        pytest.fail("it was measured and let in")
    assert machine.open == 0


@pytest.mark.parametrize("limit", range(9))
def test_the_time_ends_it_between_two_measurements(limit: int) -> None:
    """Whatever is under way then is not taken, however well it did."""
    machine = Machine(of_table(readers={1: 1.0, 2: 2.0, 3: 4.0}), limit=limit)
    found = search({"readers": (1, 2, 3)}, machine.rules)
    assert found == {"readers": 1 + limit // 4}
    assert machine.asked == limit
    assert machine.open == 0
    if limit in (1, 2, 3):
        assert machine.whys() == {2: "the time was over before its duel was"}


def test_the_memory_of_who_leads_is_not_that_of_its_challengers() -> None:
    machine = Machine(lambda options, number: 100.0)
    with Contest({"readers": 2}, machine.rules, check=True) as contest:
        contest.challenge({"readers": 3})
    trials = machine.rules.attempt({"readers": 2}).trials
    assert [trial.memory_mb for trial in trials] == [100.0, None, None]
    found = machine.rules.attempt({"readers": 2}).trial
    assert found == Trial(images_per_s=100.0, cpu_cores=0.2, memory_mb=100.0)
