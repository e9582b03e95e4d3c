"""Workers of a build: every sample once and in order, bounded chunks, and dead workers are noticed."""

from __future__ import annotations

import errno
import os
import signal
import textwrap
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty_source import FaultySource, run_out_of_memory
from forked_commands import Commands
from processes import child_pids, eventually

from penstock.loaders.cache_build import chunks as build_chunks
from penstock.loaders.cache_build.chunks import Chunk, encode_in_order
from penstock.loaders.data.cache.format import PIXELS, Encoding
from penstock.loaders.data.files.arrays import ArraySource
from penstock.loaders.run.workers import failures as worker_failures
from penstock.loaders.run.workers import pool, watch
from penstock.loaders.system import retries
from penstock.pipelines.errors import LoaderError


def arrays(count: int, side: int = 8) -> ArraySource:
    return ArraySource(
        np.arange(count * side * side * 3, dtype=np.uint8).reshape(count, side, side, 3), np.arange(count)
    )


def collect(source: Any, workers: int, first: int = 0, end: int | None = None) -> list[Chunk]:
    return list(encode_in_order(source, Encoding(kind="raw"), first, len(source) if end is None else end, workers))


def failure(source: Any, workers: int = 2) -> LoaderError:
    with pytest.raises(LoaderError) as caught:
        collect(source, workers)
    assert eventually(lambda: not child_pids())
    return caught.value


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize(("first", "end"), [(0, 300), (7, 8), (100, 263), (5, 5)])
def test_everything_once_and_in_order(workers: int, first: int, end: int) -> None:
    source = arrays(300)
    chunks = collect(source, workers, first, end)
    assert [place for chunk in chunks for place in range(*chunk.task)] == list(range(first, end))
    records = [record for chunk in chunks for record in chunk.records]
    assert [record["label"] for record in records] == list(range(first, end))
    assert {record["kind"] for record in records} <= {PIXELS}
    assert sum(chunk.source_bytes for chunk in chunks) == (end - first) * 8 * 8 * 3
    payload = b"".join(chunk.payload for chunk in chunks)
    assert len(payload) == sum(int(record["length"]) for record in records)
    assert payload == b"".join(chunk.payload for chunk in collect(source, 0, first, end))
    assert not child_pids()


def test_the_size_of_chunks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_chunks, "CHUNK_BYTES", 100_000)
    lengths = [len(chunk.payload) for chunk in collect(arrays(200, 64), 2)]
    assert max(lengths) <= 100_000
    assert len(lengths) > 20
    small = [len(chunk.records) for chunk in collect(arrays(1000, 2), 2)]
    assert max(small) == build_chunks.MAX_CHUNK_SAMPLES


def test_closing_the_iterator_ends_the_workers() -> None:
    chunks = encode_in_order(arrays(3000, 32), Encoding(kind="raw"), 0, 3000, 2)
    next(chunks)
    assert len(child_pids()) == 2
    chunks.close()
    assert eventually(lambda: not child_pids())


def test_a_program_that_leaves_a_build_open_ends(commands: Commands, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    text = textwrap.dedent("""
        import numpy as np
        from penstock.loaders.data.cache.format import Encoding
        from penstock.loaders.cache_build.chunks import encode_in_order
        from penstock.loaders.data.files.arrays import ArraySource

        source = ArraySource(np.zeros((3000, 32, 32, 3), np.uint8), np.zeros(3000, int))
        chunks = encode_in_order(source, Encoding(kind="raw"), 0, 3000, 2)
        next(chunks)
    """)
    program.write_text(text)
    assert commands.run(script=program)[0] == 0


def test_lack_of_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure(FaultySource(50, {23: run_out_of_memory})).code == "E-MEM"
    monkeypatch.setattr(watch, "oom_kills", lambda: 0)
    monkeypatch.setattr(worker_failures, "oom_kills", lambda: 1)
    error = failure(FaultySource(50, {23: partial(signal.raise_signal, signal.SIGKILL)}))
    assert (error.code, error.exit_code) == ("E-OOM", 5)


def test_a_worker_stopped_in_the_middle_of_a_message_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "DEFAULT_WATCHDOG_S", 1.0)
    chunks = encode_in_order(arrays(40, 512), Encoding(kind="raw"), 0, 40, 1)
    next(chunks)
    (pid,) = child_pids()
    time.sleep(0.5)  # it fills its pipe
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(LoaderError, match="E-TIMEOUT"):
        list(chunks)
    assert eventually(lambda: not child_pids())


def test_other_threads_may_build() -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(len(collect(arrays(100), 2))))
    thread.start()
    thread.join()
    assert found


class Flaky:
    """Fails `times` times, as a network does."""

    def __init__(self, times: int, error: OSError) -> None:
        self.times, self.error = times, error

    def __call__(self) -> None:
        self.times -= 1
        if self.times >= 0:
            raise self.error


@pytest.mark.parametrize("workers", [0, 2])
def test_reads_with_transient_faults_are_retried_as_during_serving(
    monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(retries, "RETRY_DELAYS_S", (0.01, 0.01, 0.01))
    faults = {5: Flaky(2, ConnectionResetError("reset")), 30: Flaky(1, OSError(errno.EIO, "broken"))}
    chunks = encode_in_order(FaultySource(50, faults), Encoding(), 0, 50, workers)
    assert b"".join(chunk.payload for chunk in chunks) == b"".join(
        chunk.payload for chunk in encode_in_order(FaultySource(50, {}), Encoding(), 0, 50, 0)
    )
    with pytest.raises(LoaderError, match="PermissionError") as caught:
        list(encode_in_order(FaultySource(50, {7: Flaky(9, PermissionError("no"))}), Encoding(), 0, 50, workers))
    assert (caught.value.code, caught.value.sample) == ("E-ACCESS", 7)
