"""Workers that are killed, stopped or signalled at any moment: reported in time, no hang, nothing left behind."""

from __future__ import annotations

import gc
import itertools
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import faulty_source
import pytest
from faulty_source import FaultySource, SlowToArrive
from processes import CONTRACT_S, child_pids, eventually, fork_server_pid, in_time
from torch.utils.data import Dataset

from penstock.loaders import DataLoader, LoaderError, create_loader
from penstock.loaders.cache_build.chunks import encode_in_order
from penstock.loaders.data.cache.format import Encoding
from penstock.loaders.run.workers import pool
from penstock.pipelines import imagenet_train

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
NUM_SAMPLES, BATCH, SAMPLE = 48, 4, 17
KILL, SEGV, STOP = signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP
Stream = Iterator[list[int]]  # the samples of each batch


class Numbers(Dataset[int]):
    """Sample i is i, once the source has read it."""

    def __init__(self, source: FaultySource) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> int:
        self.source.read(index)
        return index


@contextmanager
def serve_loader(source: FaultySource, method: str, watchdog_s: float) -> Iterator[Stream]:
    settings: dict[str, Any] = {"batch_size": BATCH, "shuffle": False, "workers": 2, "workers_are": "processes"}
    settings |= {"pipeline": imagenet_train(16), "start_method": method, "watchdog_s": watchdog_s}
    with create_loader(source, **settings) as loader:
        yield (batch.index.tolist() for _ in itertools.count() for batch in loader.batches())


@contextmanager
def serve_drop_in(source: FaultySource, method: str, watchdog_s: float) -> Iterator[Stream]:
    settings: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": method, "watchdog_s": watchdog_s}
    with DataLoader(Numbers(source), BATCH, persistent_workers=True, **settings) as loader:
        yield (batch.tolist() for _ in itertools.count() for batch in loader)


@contextmanager
def serve_build(source: FaultySource, method: str, watchdog_s: float) -> Iterator[Stream]:
    with pytest.MonkeyPatch.context() as patch, closing(encode_in_order(source, Encoding(), 0, len(source), 2)) as made:
        patch.setattr(pool, "DEFAULT_WATCHDOG_S", watchdog_s)
        # If a signal ended a program of a worker, an image would be stored unchanged for another reason.
        yield (list(range(*chunk.task)) for chunk in made if not chunk.kept or pytest.fail(str(chunk.kept)))


# name -> (function that serves, start method of its workers)
ENGINES: dict[str, tuple[Callable[..., AbstractContextManager[Stream]], str]] = {
    "processes": (serve_loader, "forkserver"),
    "forked processes": (serve_loader, "fork"),
    "drop-in": (serve_drop_in, "forkserver"),
    "forked drop-in": (serve_drop_in, "fork"),
    "cache build": (serve_build, "forkserver"),
}
FROM_A_SERVER = [name for name, (_, method) in ENGINES.items() if method == "forkserver"]


@pytest.fixture(autouse=True)
def no_semaphore_is_left() -> Iterator[None]:
    """Semaphores of a queue disappear with it; an error that is being examined still holds the queue."""

    def semaphores() -> set[str]:
        gc.collect()
        return {name for name in os.listdir("/dev/shm") if f"-{os.getpid()}-" in name}

    before = semaphores()
    yield
    assert eventually(lambda: semaphores() <= before)


def source_for(engine: str, at: Mapping[int, Callable[[], object]] | None = None, kind: Any = FaultySource) -> Any:
    """A source with faults; long and slow for a build, which ends with its last sample."""
    return kind(900, at or {}, delay_s=0.002) if engine == "cache build" else kind(NUM_SAMPLES, at or {})


@contextmanager
def served(engine: str, source: FaultySource, watchdog_s: float = 60.0) -> Iterator[Stream]:
    """Serve with an engine; check that it ends quickly and leaves nothing behind."""
    serve, method = ENGINES[engine]
    before = child_pids()
    with serve(source, method, watchdog_s) as stream:
        yield stream
        started = time.monotonic()
    assert in_time(started)
    assert eventually(lambda: child_pids() <= before)


def check_lost(
    stream: Stream, engine: str, number: int, words: str = "", struck: list[float] | None = None
) -> LoaderError:
    """Take batches until a worker is reported as stopped or dead, in one line and in time after the signal."""
    within_s = CONTRACT_S + (watchdog_for(number) if number == STOP else 0)
    unreported = itertools.takewhile(lambda _: not struck or in_time(struck[0], within_s), stream)
    with pytest.raises(LoaderError) as caught:
        list(unreported)
    error = caught.value
    assert not struck or in_time(struck[0], within_s)
    assert (error.code, error.exit_code) == (("E-TIMEOUT", 6) if number == STOP else ("E-WORKER", 5))
    assert (words or signal.Signals(number).name) in error.cause
    assert "\n" not in str(error)
    assert error.worker
    if "processes" in engine:
        assert error.sample in range(NUM_SAMPLES)
        assert error.path == b"memory/%d.jpg" % error.sample
    return error


def watchdog_for(number: int) -> float:
    """Allow two seconds: a worker that is still starting, as on a busy machine, is reported in other words."""
    return 2.0 if number == STOP else 60.0


# In forked processes, a handler of torch reacts to deaths but not to stops.
LOSSES = [*((engine, KILL) for engine in ENGINES), *((engine, STOP) for engine in FROM_A_SERVER)]


@pytest.mark.parametrize(("engine", "number"), [*LOSSES, ("processes", SEGV), ("drop-in", SEGV)], ids=str)
def test_a_worker_lost_in_a_sample_is_named_with_it(engine: str, number: signal.Signals) -> None:
    source = source_for(engine, {SAMPLE: partial(faulty_source.strike, number)})
    with served(engine, source, watchdog_for(number)) as stream:
        error = check_lost(stream, engine, number)
    assert error.sample == SAMPLE
    assert "drop-in" not in engine or "during the batch of samples [16, 17, 18, 19]" in error.cause


@pytest.mark.parametrize(("leave", "code"), [(faulty_source.exit_quietly, 3), (faulty_source.leave_by_system_exit, 4)])
def test_a_source_that_leaves_its_process_is_named_with_its_sample(leave: Callable[[], None], code: int) -> None:
    with served("processes", source_for("processes", {SAMPLE: leave})) as stream:
        assert check_lost(stream, "processes", KILL, f"exited with {code}").sample == SAMPLE


@pytest.mark.parametrize(("engine", "number"), LOSSES, ids=str)
def test_a_worker_lost_between_two_batches_is_named(engine: str, number: signal.Signals) -> None:
    before = child_pids()
    with served(engine, source_for(engine), watchdog_for(number)) as stream:
        next(stream)
        time.sleep(0.2)  # until it is idle; torch's handler of SIGCHLD would raise below
        victim, struck = max(child_pids() - before), [time.monotonic()]
        os.kill(victim, number)
        time.sleep(0.1)
        assert check_lost(stream, engine, number, struck=struck).worker == victim


@pytest.mark.parametrize("engine", FROM_A_SERVER)
def test_a_worker_killed_at_any_moment_is_named(engine: str) -> None:
    draw = random.Random(engine)
    for _ in range(4):
        before, struck = child_pids(), list[float]()
        with served(engine, source_for(engine)) as stream:
            for _ in range(draw.randrange(1, 12)):
                next(stream)
            victim = draw.choice(sorted(child_pids() - before))

            def kill(victim: int = victim, struck: list[float] = struck) -> None:
                struck.append(time.monotonic())
                os.kill(victim, KILL)

            timer = threading.Timer(draw.uniform(0, 0.05), kill)
            timer.start()
            assert check_lost(stream, engine, KILL, struck=struck).worker == victim
            timer.join()


@pytest.mark.parametrize(
    ("engine", "number"),
    [*((engine, KILL) for engine in FROM_A_SERVER), ("processes", STOP), ("drop-in", STOP)],
    ids=str,
)
def test_a_worker_lost_before_its_first_sample_is_named(engine: str, number: signal.Signals) -> None:
    before = child_pids()

    def strike() -> None:
        assert eventually(lambda: len(child_pids() - before) == 2, 60)
        for pid in child_pids() - before:
            os.kill(pid, number)

    with served(engine, source_for(engine, kind=SlowToArrive), watchdog_for(number)) as stream:
        thread = threading.Thread(target=strike)
        thread.start()
        error = check_lost(stream, engine, number)
        thread.join()
    words = {"processes": "before its first sample" * (number == KILL), "drop-in": "while it was being started"}
    assert words.get(engine, "") in error.cause
    assert engine != "processes" or error.sample in (0, BATCH)  # of the first batch, or of the second worker's


def test_a_lost_fork_server_is_an_error_and_the_next_loader_starts_another() -> None:
    for engine in FROM_A_SERVER[:2]:
        with served(engine, source_for(engine)) as stream:
            next(stream)
            if engine == "processes":
                os.kill(fork_server_pid(), KILL)
                check_lost(stream, engine, KILL, "lost with its fork server")


@pytest.mark.parametrize("engine", FROM_A_SERVER)
def test_signals_to_a_whole_job_are_left_to_the_parent(engine: str) -> None:
    """The parent may need batches to finish a step and save; a build may need its images."""
    before, source = child_pids(), source_for(engine)
    with served(engine, source) as stream:
        seen = next(stream)
        assert eventually(lambda: sum(map(leaves_ctrl_c_to_its_parent, child_pids() - before)) == 2)
        workers = child_pids() - before
        for pid in (*workers, fork_server_pid()):
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
                os.kill(pid, number)
        while len(seen) < len(source):
            seen += next(stream)
        assert engine == "cache build" or child_pids() - before == workers
    assert seen == list(range(len(source)))


def leaves_ctrl_c_to_its_parent(pid: int) -> bool:
    ignored = re.search(r"SigIgn:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(ignored and int(ignored[1], 16) >> (signal.SIGINT - 1) & 1)
