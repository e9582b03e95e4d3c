"""Measures the costs of a billion samples without the data: `python tests/studies/billion_samples.py FOLDER [SAMPLES]`.

It writes an index of SAMPLES samples (100 million, about 3 GB) in 100,000 shards to FOLDER, opens it in a fresh
process, and draws batches of a billion samples with the full shuffle and by blocks. Then it counts the requests with
which nodes of 8 ranks fetch such data: the announcements of one rank for some steps are joined as by a fetcher, and
scaled to the epoch. It prints a JSON record.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.remote.fetcher import Range, join_neighbours
from penstock.loaders.data.samples.samples import COLUMNS, Samples, SamplesHeader
from penstock.loaders.data.samples.version import Version
from penstock.loaders.make.read_ahead import ReadAhead
from penstock.loaders.order.block_order import BlockShuffled
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.order import Order, Shuffled
from penstock.loaders.order.schedule import Schedule
from penstock.loaders.system.saved_columns import write_columns

N, SHARDS, BATCH, RANKS_PER_NODE = 10**9, 100_000, 256, 8
SIZE, STEP = 110_000, 110_592  # bytes of a photo, and from one photo to the next in a tar
WINDOWS = 4  # windows served per count


def write_index(path: Path, samples: int) -> None:
    """Write the index of `samples` samples; keys have 13 bytes."""
    per_shard = samples // SHARDS
    numbers = np.arange(samples, dtype=np.uint32)
    keys = np.empty((samples, 13), np.uint8)
    rest = numbers.copy()
    for digit in reversed(range(9)):
        keys[:, digit] = rest % 10 + ord("0")
        rest //= 10
    keys[:, 9:] = np.frombuffer(b".jpg", np.uint8)
    names = [b"s3://bucket/train-%06d.tar" % shard for shard in range(SHARDS)]
    header = SamplesHeader(kind="tar files", fingerprint="0" * 64, content="0" * 64, num_bytes=samples * SIZE)
    columns: dict[str, npt.NDArray[Any]] = {
        **{name: np.zeros(0, kinds[0]) for name, kinds in COLUMNS.items()},
        "class_counts": np.array([samples]),
        "folder_offsets": np.zeros(1, np.uint64),
        "class_names": np.frombuffer(b"one", np.uint8),
        "class_offsets": np.array([0, 3], np.uint64),
        "container_names": np.frombuffer(b"".join(names), np.uint8),
        "container_offsets": np.cumsum([0, *map(len, names)]).astype(np.uint64),
        "container_sizes": np.full(SHARDS, per_shard * STEP, np.uint64),
        "container_versions": np.ones(SHARDS, np.int64),
        "sample_names": keys.reshape(-1),
        "sample_offsets": np.arange(samples + 1, dtype=np.uint32) * np.uint32(13),
        "sample_containers": numbers // np.uint32(per_shard),
        "sample_starts": numbers % np.uint32(per_shard) * np.uint32(STEP),
        "sample_sizes": np.full(samples, SIZE, np.uint32),
        "sample_labels": np.zeros(samples, np.int32),
    }
    with path.open("wb") as file:
        write_columns(file, json.dumps(asdict(header)).encode("ascii"), columns, COLUMNS)


def resident_mb() -> dict[str, float]:
    """Return the private and the shared resident memory of this process in MB."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(fields[name].split()[0]) / 1000 for name in ("RssAnon", "RssFile")}


def open_index(path: Path) -> dict[str, Any]:
    """Open the index, look up 1,000 batches of random samples, and return seconds and memory."""
    started = time.perf_counter()
    Samples(os.fsencode(path))  # reads the whole index to check its digest, as the first opening does
    verified_s = time.perf_counter() - started
    before, started = resident_mb(), time.perf_counter()
    index = Samples(os.fsencode(path), verify=False)  # as worker processes do
    opened_s, opened = time.perf_counter() - started, resident_mb()
    draw = np.random.default_rng(0)
    for _ in range(1000):
        some = draw.integers(0, len(index), BATCH)
        index.container_of(some), index.starts(some), index.sizes[some], index.labels_of(some)
    used = resident_mb()
    found = {
        f"{when}_{name}_mb": round(now[name] - before[name], 1)
        for when, now in (("opened", opened), ("used", used))
        for name in now
    }
    return {"open_and_verify_s": round(verified_s, 2), "open_ms": round(opened_s * 1000, 1), **found}


def time_draws(order: Order) -> dict[str, float]:
    """Return the milliseconds of CPU time per batch of 256: mean over 16 batches, several times."""
    schedule, times = Schedule(n=N, batch_size=BATCH, order=order), []
    for run in range(40):
        started = time.process_time()
        for step in range(16):
            schedule.batch(1, (run * 16 + step) * BATCH)
        times.append((time.process_time() - started) / 16 * 1000)
    return {"median_ms": round(statistics.median(times), 3), "least_ms": round(min(times), 3)}


class Announced:
    """A source of N samples that counts the requests for announced samples."""

    def __init__(self, *, holds_blocks: bool) -> None:
        self.holds_blocks = holds_blocks
        self.classes, self.fingerprint, self.skipped = (b"one",), "0", {}
        self.samples = self.requests = self.num_bytes = 0
        self.has_room = False

    def __len__(self) -> int:
        return N

    def read(self, index: int) -> bytes:
        raise NotImplementedError

    labels = path = describe = read

    def make_room(self, num_samples: int) -> bool:
        return self.holds_blocks

    def announce(self, indices: npt.NDArray[np.int64]) -> None:
        per_shard = N // SHARDS
        wanted = [Range(i, f"{i // per_shard:06}", i % per_shard * STEP, SIZE, Version(1)) for i in indices.tolist()]
        for request in join_neighbours(wanted):
            self.requests += 1
            self.num_bytes += request[-1].start + SIZE - request[0].start
        self.samples += len(indices)

    announce_blocks = announce

    def forget(self) -> None:
        """Do nothing: no announcement is dropped."""


def count_requests(order: Order, nodes: int, *, holds_blocks: bool) -> dict[str, float]:
    """Serve some windows of one rank; return what a node fetches in an epoch, in the order's steady state."""
    world = nodes * RANKS_PER_NODE
    schedule = Schedule(n=N, batch_size=BATCH, rank=world // 2, world_size=world, order=order)
    source, ahead = Announced(holds_blocks=holds_blocks), ReadAhead()
    cursor = Cursor(0, schedule.global_batch * 1000)
    ahead.advance(source, schedule, cursor)  # type: ignore[arg-type]
    source.samples = source.requests = source.num_bytes = 0
    while source.samples < max(WINDOWS * 16384 // world, 40 * BATCH):
        cursor = schedule.after(cursor)
        ahead.advance(source, schedule, cursor)  # type: ignore[arg-type]
    scale = N / nodes / source.samples
    return {
        "nodes": nodes,
        "samples_counted": source.samples,
        "requests_per_1000_samples": round(1000 * source.requests / source.samples, 1),
        "requests_per_node_and_epoch": round(source.requests * scale),
        "tb_per_node_and_epoch": round(source.num_bytes * scale / 1e12, 3),
    }


def main() -> None:
    """Print the record."""
    if sys.argv[1] == "--open":
        print(json.dumps(open_index(Path(sys.argv[2]))))
        return
    folder, samples = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10**8
    path = folder / "billion.index"
    started = time.perf_counter()
    write_index(path, samples)
    written_s = time.perf_counter() - started
    opened = subprocess.run([sys.executable, __file__, "--open", str(path)], check=True, stdout=subprocess.PIPE)
    index = {"samples": samples, "shards": SHARDS, "bytes_per_sample": round(path.stat().st_size / samples, 2)}
    index |= {"written_s": round(written_s, 1), **json.loads(opened.stdout)}
    path.unlink()
    full, blocks = Shuffled(N, 1), BlockShuffled(n=N, seed=1, block=64, group=256)
    cpu = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model" in line[:10]
    ]
    record = {
        "study": "billion_samples",
        "processor": f"{cpu[1]}, model {cpu[0]}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
        "samples": N,
        "index": index,
        "draw_of_a_batch": {"full shuffle": time_draws(full), blocks.name: time_draws(blocks)},
        "fetched": {
            "full shuffle": [count_requests(full, nodes, holds_blocks=False) for nodes in (1, 8, 64)],
            f"{blocks.name}, held": [count_requests(blocks, nodes, holds_blocks=True) for nodes in (1, 8, 64)],
            f"{blocks.name}, too little memory": [count_requests(blocks, 1, holds_blocks=False)],
        },
    }
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
