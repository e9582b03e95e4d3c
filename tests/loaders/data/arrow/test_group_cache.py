"""The cache of row groups: eviction, and one load per group."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from typing import NamedTuple

import pytest

from penstock.loaders.data.arrow.group_cache import GroupCache


class Group(NamedTuple):
    number: int
    num_bytes: int = 10


def get(cache: GroupCache, number: int, size: int = 10) -> int:
    return cache.get(number, lambda: Group(number, size)).number


def test_the_groups_used_last_are_kept() -> None:
    cache = GroupCache(30)
    assert [get(cache, number) for number in (1, 2, 3, 1, 4)] == [1, 2, 3, 1, 4]
    assert (cache.loads, cache.evictions) == (4, 1)
    assert [get(cache, number) for number in (1, 3, 4)] == [1, 3, 4]
    assert cache.loads == 4
    assert get(cache, 2) == 2
    assert cache.loads == 5


def test_a_group_larger_than_the_limit_is_kept_alone() -> None:
    cache = GroupCache(30)
    assert [get(cache, 1), get(cache, 2, 99), get(cache, 2)] == [1, 2, 2]
    assert (cache.loads, cache.evictions) == (2, 1)
    assert [get(cache, 3), get(cache, 1), get(cache, 3)] == [3, 1, 3]
    assert (cache.loads, cache.evictions) == (4, 2)


def test_one_thread_loads_and_the_others_wait() -> None:
    cache = GroupCache(30)
    began, go = threading.Event(), threading.Event()
    found: list[Group] = []

    def load() -> Group:
        began.set()
        assert go.wait(60)
        return Group(1)

    threads = [threading.Thread(target=lambda: found.append(cache.get(1, load))) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert began.wait(60)
    assert get(cache, 2) == 2  # another group does not wait
    time.sleep(0.05)
    go.set()
    for thread in threads:
        thread.join(600)
    assert [group is found[0] for group in found] == [True] * 8
    assert cache.loads == 2


def test_a_failed_load_is_raised_and_retried() -> None:
    cache = GroupCache(30)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            cache.get(1, lambda: Group(1 // 0))
    assert get(cache, 1) == 1
    assert cache.loads == 3


def test_a_forked_process_starts_with_an_empty_cache() -> None:
    cache = GroupCache(30)
    get(cache, 1)
    copy = pickle.loads(pickle.dumps(cache))
    assert (copy.limit_bytes, copy.loads) == (30, 0)
    with cache._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # in case it blocks on the lock
            os._exit(get(cache, 7) if cache._groups else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
