"""The number of concurrent requests follows a simulated server: its latency, its bandwidth, and its refusals."""

from __future__ import annotations

import heapq
import random
import threading
from dataclasses import dataclass

import pytest

from penstock.loaders.data.requests import pace as pace_module
from penstock.loaders.data.requests.pace import MOST_REQUESTS, Pace

PHOTO = 110_000


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(pace_module, "time", found)
    return found


@dataclass
class Server:
    """Answers after `latency_s`, over a line of `bytes_per_s`; refuses requests beyond `most` at once."""

    latency_s: float
    bytes_per_s: float = 1e12
    most: int = 10**9


def run(clock: Clock, pace: Pace, server: Server, seconds: float, num_bytes: int = PHOTO, wanted: int = 10**9) -> float:
    """Keep as many requests under way as `pace` allows, and at most `wanted`; return answers per second."""
    end, free_at, answers = clock.now + seconds, clock.now, 0
    draw, under_way = random.Random(1), list[tuple[float, float, bool]]()
    while clock.now < end:
        while len(under_way) < min(pace.limit, wanted):
            if len(under_way) >= server.most:
                heapq.heappush(under_way, (clock.now + server.latency_s, clock.now, False))
                continue
            sent = clock.now + server.latency_s * draw.uniform(0.8, 1.2)
            free_at = max(free_at, sent) + num_bytes / server.bytes_per_s
            heapq.heappush(under_way, (free_at, clock.now, True))
        clock.now, begun, is_good = heapq.heappop(under_way)
        if is_good:
            answers += 1
            pace.answered(clock.now - begun, num_bytes)
        else:
            pace.busy()
    return answers / seconds


@pytest.mark.parametrize("latency_s", [0.03, 0.1, 0.5])
def test_a_long_latency_needs_more_requests(clock: Clock, latency_s: float) -> None:
    pace = Pace(64, 256 << 20)
    run(clock, pace, Server(latency_s), 200 * latency_s)
    assert pace.limit == MOST_REQUESTS
    assert run(clock, pace, Server(latency_s), 20 * latency_s) > 0.8 * MOST_REQUESTS / latency_s


@pytest.mark.parametrize("bytes_per_s", [5e6, 50e6])
def test_a_full_line_gains_nothing_by_more_requests(clock: Clock, bytes_per_s: float) -> None:
    pace = Pace(64, 256 << 20)
    server = Server(0.02, bytes_per_s)
    run(clock, pace, server, 300)
    assert pace.limit <= 80
    assert run(clock, pace, server, 30) * PHOTO > 0.95 * bytes_per_s


def test_the_line_becomes_wider(clock: Clock) -> None:
    pace = Pace(16, 256 << 20)
    run(clock, pace, Server(0.1, 10e6), 60)
    assert pace.limit <= 20
    run(clock, pace, Server(0.1, 1e9), 60)
    assert pace.limit > 60


def test_large_requests_stay_within_the_bytes(clock: Clock) -> None:
    pace = Pace(8, 64 << 20)
    run(clock, pace, Server(0.1), 60, num_bytes=4 << 20)
    assert pace.limit == 16


def test_fewer_requests_than_allowed_teach_nothing(clock: Clock) -> None:
    pace = Pace(64, 256 << 20)
    run(clock, pace, Server(0.1), 60, wanted=10)
    assert pace.limit == 64


@pytest.mark.parametrize("most", [1, 10, 40, 150])
def test_a_server_that_refuses_gets_fewer_and_then_more_again(clock: Clock, most: int) -> None:
    pace = Pace(64, 256 << 20)
    busy = Server(0.05, most=most)
    assert run(clock, pace, busy, 30) > 0.35 * most / 0.05
    assert pace.limit <= 2 * most + 8
    run(clock, pace, Server(0.05), 20)
    assert pace.limit == MOST_REQUESTS


def test_refusals_of_one_round_trip_halve_once(clock: Clock) -> None:
    pace = Pace(64, 256 << 20)
    pace.answered(0.2, PHOTO)
    for _ in range(64):
        pace.busy()
    assert pace.limit == 32
    clock.now += 0.3
    pace.busy()
    assert pace.limit == 16
    for _ in range(20):
        clock.now += 0.3
        pace.busy()
    assert pace.limit == 1


def test_threads_may_share_a_pace() -> None:
    pace = Pace(4, 256 << 20)

    def work(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(2000):
            pace.busy() if draw.random() < 0.01 else pace.answered(draw.random() / 1000, PHOTO)
            assert 1 <= pace.limit <= MOST_REQUESTS

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= pace.limit <= MOST_REQUESTS
