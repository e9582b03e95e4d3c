"""The dali backend leaves nothing behind and reports every fault of the data, of DALI and of its options."""

from __future__ import annotations

import gc
import importlib
import itertools
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from broken_scans import KINDS, make_undecodable
from dali_streams import IDS, WORKERS, open_loader, pixels_of, stream
from faulty_source import run_out_of_memory
from forked_commands import Commands
from make_planner import make_planner
from memory_source import MemorySource
from photo_folder import photo
from processes import eventually, in_time, threads

from penstock.loaders import LoaderError
from penstock.loaders.dali import dali_stage
from penstock.loaders.dali.dali_engine import DaliEngine, DaliOptions, default_readers
from penstock.loaders.order.cursor import Cursor
from penstock.pipelines import imagenet_eval
from penstock.pipelines.sample.dali_graph import DaliGraph

# growth


SLACK = 12 << 20  # bytes that a process with threads may gain by chance


def footprint() -> tuple[int, int, int]:
    """Return bytes of memory, threads and descriptors once the number of threads is stable; 5 s at most.

    File-backed memory is left out: whether a library's pages are private depends on which other processes run.
    """
    me, deadline, counts = psutil.Process(), time.monotonic() + 5, [0]
    while time.monotonic() < deadline and (len(counts) < 10 or len(set(counts[-10:])) > 1):
        counts.append(me.num_threads())
        time.sleep(0.02)
    gc.collect()
    memory = me.memory_info()
    return memory.rss - memory.shared, me.num_threads(), me.num_fds()


def assert_flat(before: tuple[int, int, int]) -> None:
    after = footprint()
    assert after[0] - before[0] < SLACK, f"{(after[0] - before[0]) / 2**20:.1f} MiB more"
    assert after[1] <= before[1]
    assert after[2] <= before[2]


def test_refused_batches_leave_nothing_behind() -> None:
    items = [make_undecodable(photo(k), KINDS[0]) if k % 4 == 1 else photo(k) for k in range(40)]
    settings = {"batch_size": 4, "shuffle": False, "on_bad_sample": "replace"}
    with open_loader(MemorySource(items), **settings, **WORKERS[1]) as loader:
        batches = itertools.chain.from_iterable(loader.batches() for _ in itertools.count())
        for _ in itertools.islice(batches, 15):
            pass
        before = footprint()
        for _ in itertools.islice(batches, 40):
            pass
        assert_flat(before)
        assert loader.describe()["batches_refused"] >= 55  # type: ignore[operator]


@pytest.mark.parametrize("ending", ["dropped", "closed"])
@pytest.mark.parametrize("options", WORKERS, ids=IDS)
def test_a_closed_or_dropped_loader_ends_its_threads(photos: Path, options: dict[str, Any], ending: str) -> None:
    """Its own threads and those of DALI, except those that torch and DALI start once per process."""
    with open_loader(photos, batch_size=4, **options) as first:
        next(iter(first))
    started = psutil.Process().num_threads()
    loader = open_loader(photos, batch_size=4, **options)
    next(iter(loader))
    assert len(threads()) == (3 if options["workers"] else 0)
    assert psutil.Process().num_threads() > started
    if ending == "closed":
        loader.close()
    else:
        del loader
        gc.collect()
    assert eventually(lambda: not threads() and psutil.Process().num_threads() <= started)


def test_two_loaders_at_once_serve_what_each_serves_alone(photos: Path) -> None:
    train = {"batch_size": 8, "workers": 2, "prefetch": 3}
    val = {"batch_size": 10, "workers": 2, "pipeline": imagenet_eval(24)}
    alone = [stream(photos, **settings) for settings in (train, val)]
    with open_loader(photos, **train) as one, open_loader(photos, **val) as two:
        for _ in range(2):
            both = list(itertools.zip_longest(one.batches(), two.batches()))
            for number, expected in enumerate(alone):
                served = np.concatenate([pixels_of(pair[number]) for pair in both if pair[number] is not None])
                if number == 1 or one.epoch == 1:
                    assert np.array_equal(served, expected.pixels)


# faults


PROGRAM = """
import signal, sys, warnings
from penstock.loaders import create_loader
from penstock.pipelines import imagenet_train

warnings.simplefilter("error")
settings = {"backend": "dali", "batch_size": 8, "pipeline": imagenet_train(64)}
loaders = [create_loader(sys.argv[1], workers=workers, **settings) for workers in (0, 2)]
for loader in loaders:
    next(iter(loader))
"""


@pytest.mark.parametrize(
    ("end", "code", "told"),
    [
        ("", 0, ""),
        ("raise ValueError('own')", 1, "ValueError: own"),
        ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT, "KeyboardInterrupt"),
    ],
)
def test_a_program_may_end_in_mid_epoch(
    commands: Commands, photos: Path, tmp_path: Path, end: str, code: int, told: str
) -> None:
    """With and without threads, both loaders still open; DALI registers its own atexit handler."""
    (tmp_path / "program.py").write_text(PROGRAM + end)
    returned, command = commands.run(photos, script=tmp_path / "program.py")
    errors = command.errors
    assert (returned, errors.count("Traceback")) == (code, int(code != 0)), errors
    assert (errors.splitlines() or [""])[-1] == told


def engine_of(source: Any, **options: Any) -> DaliEngine:
    return DaliEngine(make_planner(source), DaliOptions(**options))


@pytest.mark.parametrize("method", ["take", "feed", "_built"])
def test_ctrl_c_within_dali_loses_no_batch(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    engine = engine_of(MemorySource([photo(k) for k in range(48)]), workers=0)
    engine.seek(Cursor(0, 0))
    expected = [engine.next() for _ in range(12)]
    engine.seek(Cursor(0, 0))
    undisturbed, calls, interrupted, served = getattr(DaliGraph, method), 0, 0, []

    def at_times(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 3 == 2:
            raise KeyboardInterrupt
        return undisturbed(*arguments, **named)

    monkeypatch.setattr(DaliGraph, method, at_times)
    while len(served) < 12:
        try:
            served.append(engine.next())
        except KeyboardInterrupt:
            interrupted += 1
        if method == "_built":
            engine._stage.close()  # so that a graph is built for each batch
    engine.close()
    assert interrupted >= 2
    assert [batch.index.tolist() for batch in served] == [batch.index.tolist() for batch in expected]
    assert all(torch.equal(one.images, two.images) for one, two in zip(served, expected, strict=True))


@pytest.mark.timeout(60)
def test_a_hang_of_dali_is_reported(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, take = threading.Event(), DaliGraph.take

    def hang(graph: DaliGraph) -> torch.Tensor:
        if threading.current_thread().name == "penstock-dali":
            go_on.wait(60)
        return take(graph)

    # The first batch takes long on a busy machine.
    loader = open_loader(photos, batch_size=8, workers=2, watchdog_s=2.5)
    batches = loader.batches()
    next(batches)
    monkeypatch.setattr(DaliGraph, "take", hang)
    started = time.monotonic()
    with pytest.raises(LoaderError, match=r"E-TIMEOUT.*backend=dali rank=0.*no thread has made progress for [23] s"):
        list(batches)
    loader.close()
    assert in_time(started, 10)
    go_on.set()
    assert eventually(lambda: not threads())


def fail_with(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("options", WORKERS, ids=IDS)
@pytest.mark.parametrize(
    ("method", "error", "line"),
    [
        ("take", MemoryError("no room"), r"E-WORKER\] backend=dali rank=0 cause=MemoryError: no room"),
        ("feed", TypeError("a float"), r"E-WORKER\] backend=dali rank=0 cause=TypeError: a float"),
        ("_built", RuntimeError("no\nfonts"), r"E-DEPENDENCY\] backend=dali rank=0 cause=.*on the CPU: no fonts"),
        ("_built", RuntimeError("failed to allocate"), r"E-MEM\] backend=dali rank=0 cause=DALI: failed to allocate"),
    ],
    ids=["take", "feed", "build", "memory"],
)
def test_errors_of_dali_become_one_line_with_the_backend(
    photos: Path, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception, line: str, options: dict[str, Any]
) -> None:
    with open_loader(photos, batch_size=8, **options) as loader:
        if method != "_built":  # in the middle of the epoch
            next(iter(loader))
        monkeypatch.setattr(DaliGraph, method, fail_with(error))
        with pytest.raises(LoaderError, match=line) as caught:
            list(loader)
        assert caught.value.__cause__ is error
        assert "\n" not in str(caught.value)
    assert eventually(lambda: not threads())


def test_an_error_while_a_batch_is_repeated_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source breaks while a batch that DALI refused is made again."""
    items = [photo(k) for k in range(40)]
    items[20] = make_undecodable(photo(20), KINDS[0])
    for options in WORKERS:
        reads = itertools.count()
        at = {21: lambda reads=reads: next(reads) and run_out_of_memory()}
        settings = {"batch_size": 8, "shuffle": False, "on_bad_sample": "replace"}
        with open_loader(MemorySource(items, at), **settings, **options) as loader:
            with pytest.raises(LoaderError, match=r"E-MEM\] sample=21 .*backend=dali.*no room for 7 bytes"):
                list(loader)
            assert loader.state_dict()["position"] == 16


def test_close_while_dali_repeats_a_batch_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [make_undecodable(photo(k), KINDS[0]) if k % 8 == 1 else photo(k) for k in range(64)]
    repaired = dali_stage.DaliStage._retry
    for _ in range(3):
        begun = threading.Event()

        def slowly(stage: Any, sent: Any, begun: threading.Event = begun) -> Any:
            begun.set()
            return repaired(stage, sent)

        monkeypatch.setattr(dali_stage.DaliStage, "_retry", slowly)
        loader = open_loader(MemorySource(items), batch_size=8, workers=2, prefetch=3, on_bad_sample="replace")
        next(loader.batches())
        assert begun.wait(10)
        started = time.monotonic()
        loader.close()
        assert in_time(started)
        assert eventually(lambda: not threads())


@pytest.mark.parametrize("version", [None, "1.0"])
def test_creating_a_loader_without_dali_fails(
    photos: Path, monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    if version is None:
        monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    else:
        monkeypatch.setattr(importlib.import_module("nvidia.dali"), "__version__", version)
    with pytest.raises(LoaderError, match=r"E-DEPENDENCY.*pip install 'nvidia-dali-cuda"):
        open_loader(photos, batch_size=8)


def test_one_reader_serves_four_workers() -> None:
    assert [default_readers(workers) for workers in (1, 4, 5, 16, 17, 64)] == [1, 1, 2, 4, 4, 4]
