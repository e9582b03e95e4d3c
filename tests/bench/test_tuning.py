"""The search of knobs, on rates that a test makes up: what wins, what does not, what is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from penstock.bench.tuning import Options, num_measurements, search
from penstock.pipelines.errors import LoaderError


class Machine:
    """Opens options and measures them: `rate(options, number of the measurement)`. Counts what is open."""

    def __init__(self, rate: Callable[[Options, int], float]) -> None:
        self._rate, self.open, self.asked, self.said = rate, 0, 0, list[str]()

    @contextmanager
    def opened(self, options: Options) -> Iterator[Callable[[], float]]:
        if options.get("readers") == 64:
            raise LoaderError("E-MEM", "64 readers do not fit")
        self.open += 1
        assert self.open <= 2
        try:
            yield lambda: self._measure(options)
        finally:
            self.open -= 1

    def _measure(self, options: Options) -> float:
        self.asked += 1
        return self._rate(options, self.asked)


SPACE = {"readers": (1, 2, 4), "prefetch": (2, 3), "padding": (None, 1 << 20)}


def test_the_fastest_value_of_each_knob_is_taken_and_all_are_told() -> None:
    gains = {"readers": {1: 1.0, 2: 1.3, 4: 1.2}, "prefetch": {2: 1.0, 3: 0.8}, "padding": {None: 1.0, 1 << 20: 1.1}}

    def rate(options: Options, number: int) -> float:
        product = 100.0
        for knob, value in options.items():
            product *= gains[knob][value]  # type: ignore[index]
        return product

    machine = Machine(rate)
    chosen, tuned = search(SPACE, machine.opened, machine.said.append)
    assert chosen == {"readers": 2, "prefetch": 2, "padding": 1 << 20}
    assert tuned["readers"].tried == pytest.approx({"1": 100, "2": 130, "4": 120})
    assert tuned["prefetch"].tried == pytest.approx({"2": 130, "3": 104})
    assert tuned["padding"].tried == pytest.approx({"null": 130, str(1 << 20): 143})
    assert (machine.open, machine.asked, len(machine.said)) == (0, 16, num_measurements(SPACE))
    assert machine.said[0] == "tuning: readers=2"
    assert search({}, machine.opened, machine.said.append) == ({}, {})


@pytest.mark.parametrize(
    "rate",
    [
        lambda options, number: 102.0 if options["readers"] == 2 else 100.0,  # a lead within the noise
        lambda options, number: 100.0 * 1.2**number,  # a machine that gets faster
        lambda options, number: 100.0 * 0.8**number,
        lambda options, number: 200.0 if number == 2 else 100.0,  # one lucky measurement
        lambda options, number: 50.0 if number == 1 else 100.0,
    ],
    ids=["noise", "faster", "slower", "lucky", "unlucky"],
)
def test_neither_noise_nor_drift_chooses(rate: Callable[[Options, int], float]) -> None:
    machine = Machine(rate)
    assert search({"readers": (1, 2)}, machine.opened, machine.said.append)[0] == {"readers": 1}
    assert machine.open == 0


def test_a_value_that_fails_is_left_out_with_its_cause() -> None:
    def rate(options: Options, number: int) -> float:
        if options["readers"] == 2 and number > 2:
            raise LoaderError("E-TIMEOUT", "silent for a second")
        return 100.0 * int(options["readers"] or 0)

    machine = Machine(rate)
    chosen, tuned = search({"readers": (1, 64, 2, 3)}, machine.opened, machine.said.append)
    assert chosen == {"readers": 3}
    assert tuned["readers"].tried == {"1": 100, "3": 300}
    assert tuned["readers"].failed == {"64": "64 readers do not fit", "2": "silent for a second"}
    assert machine.open == 0


@pytest.mark.parametrize("error", [LoaderError("E-MAXBAD", "too many"), KeyboardInterrupt()], ids=["bad", "Ctrl-C"])
def test_what_fails_with_the_first_value_too_is_raised_and_nothing_stays_open(error: BaseException) -> None:
    def rate(options: Options, number: int) -> float:
        if number == 4:
            raise error
        return 100.0

    machine = Machine(rate)
    with pytest.raises(type(error)):
        search({"readers": (1, 2)}, machine.opened, machine.said.append)
    assert (machine.open, machine.asked) == (0, 4)
