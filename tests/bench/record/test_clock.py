"""Rates and step times, on a scripted clock: these tests do not depend on real time."""

import pytest

from penstock.bench.record.clock import Clock, Mark, Rate, StepTimer, measure_rate


class ScriptedClock(Clock):
    """Host time advances only by calls of a test; the device lags by `lag` seconds and is read only on request."""

    def __init__(self):
        super().__init__("cpu")
        self.now = 0.0
        self.device_now = 0.0
        self.lag_steps = 0

    def host(self, seconds):
        """The host works or waits; an idle device waits with it."""
        self.now += seconds
        self.device_now = max(self.device_now, self.now)

    def queue(self, seconds):
        """The host queues work of this many seconds on the device and continues at once."""
        self.device_now = max(self.device_now, self.now) + seconds

    def mark(self):
        return Mark(self.now, max(self.device_now, self.now))

    def passed(self, mark):
        return mark.event <= self.now

    def seconds(self, begin, end):
        return end.event - begin.event

    def synchronize(self):
        self.now = max(self.now, self.device_now)


def test_the_rate_is_computed_over_windows_of_consecutive_steps():
    # Bursts: nine of ten steps take no time. Single steps would have a median of a billion images per second.
    rate = Rate.from_steps([8] * 100, ([0.0] * 9 + [1.0]) * 10)
    assert (rate.q25, rate.median, rate.q75) == (80.0, 80.0, 80.0)
    assert (rate.windows, rate.images, rate.seconds) == (10, 800, 10.0)


def test_the_rate_has_the_quartiles_of_unequal_windows():
    rate = Rate.from_steps([10] * 5, [1.0, 2.0, 4.0, 5.0, 10.0])
    assert (rate.windows, rate.q25, rate.median, rate.q75) == (5, 2.0, 2.5, 5.0)


def run_loop(timer, clock, steps, *, load, compute, restart_after=0):
    def batches():
        for _ in range(steps):
            clock.host(load)
            yield [None] * 4

    seen = 0
    for batch in timer.watch(batches(), len):
        seen += len(batch)
        clock.queue(compute)
        if seen == 4 * restart_after:
            timer.restart()
    return seen


def test_a_wait_hidden_behind_queued_work_does_not_count():
    clock = ScriptedClock()
    timer = StepTimer(clock)
    assert run_loop(timer, clock, 40, load=0.25, compute=1.0, restart_after=8) == 160
    times = timer.times()
    assert times.steps == 32
    assert times.images_per_s.median == 4.0
    assert times.wait_share == 0.0


def test_a_device_without_work_waits():
    clock = ScriptedClock()
    clock.queue = clock.host  # as on a CPU, where the host does the work itself
    timer = StepTimer(clock)
    run_loop(timer, clock, 20, load=0.75, compute=0.25)
    times = timer.times()
    assert times.images_per_s.median == 4.0
    assert times.wait_share == 0.75


def test_restart_forgets_the_warm_up_and_the_current_step():
    clock = ScriptedClock()
    timer = StepTimer(clock)
    slow = iter([50.0, 50.0] + [0.5] * 8)
    for _ in timer.watch(range(10), lambda _: 1):
        clock.host(next(slow))
        if clock.now == 100.0:
            timer.restart()
    times = timer.times()
    assert (times.steps, times.images_per_s.seconds) == (8, 4.0)


def scripted_rate(step_seconds, *, seconds, queued=False, **more):
    clock = ScriptedClock()
    durations = iter(step_seconds)

    def step():
        (clock.queue if queued else clock.host)(next(durations))
        clock.host(0.001)
        return 10

    rate = measure_rate(step, seconds=seconds, clock=clock, **more)
    return rate, clock.now


def endless(first, then):
    yield from first
    while True:
        yield then


def test_warm_up_is_not_measured_and_the_budget_is_kept():
    rate, spent = scripted_rate(endless([100.0], 0.099), seconds=10.0)
    assert rate.median == pytest.approx(100.0)
    assert rate.windows == 10
    assert rate.seconds == pytest.approx(8.0, rel=0.1)
    assert spent == pytest.approx(110.0, rel=0.1)


def test_slow_steps_still_give_three_windows():
    rate, _ = scripted_rate(endless([], 5.0), seconds=1.0)
    assert (rate.windows, rate.images) == (3, 30)


def test_asynchronous_work_is_timed_on_the_device():
    # The host queues a step in a millisecond; the device needs 0.1 s for it.
    rate, _ = scripted_rate(endless([], 0.1), seconds=2.0, queued=True)
    assert rate.median == pytest.approx(100.0)


def test_slow_steps_are_measured_once_if_patience_is_short():
    rate, spent = scripted_rate(endless([], 29.999), seconds=4.0, patience=2.0)
    assert (rate.median, rate.windows, spent) == (pytest.approx(10 / 30), 1, pytest.approx(60.0))
    assert scripted_rate(endless([], 29.999), seconds=4.0)[1] == pytest.approx(150.0)
    assert scripted_rate(endless([30.0], 0.099), seconds=4.0, patience=2.0)[0].windows == 8  # only the first was slow


def test_the_host_clock_goes_forward():
    clock = Clock("cpu")
    first, second = clock.mark(), clock.mark()
    assert clock.passed(first)
    assert clock.seconds(first, second) >= 0
    rate = measure_rate(lambda: sum(1 for _ in range(1000)), seconds=0.02)
    assert rate.images > 0
    assert rate.q25 <= rate.median <= rate.q75
