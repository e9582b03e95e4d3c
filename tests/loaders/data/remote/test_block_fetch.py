"""Remote data shuffled by blocks: few requests per block, each byte fetched once; fetches of worker processes."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from faulty_source import FaultySource
from range_server import RangeServer
from remote_photos import PARTS, open_loader, open_remote
from served_rows import Row, serve

from penstock.loaders import Blocks
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.remote import fetcher
from penstock.loaders.make import read_ahead
from penstock.loaders.make.own.own_indices import open_own_order
from penstock.loaders.order.block_order import BlockShuffled
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.schedule import Schedule

NUM_PHOTOS = 240
BLOCK = 24
BLOCKS = Blocks(samples=BLOCK, group=4)  # 2 lanes
FEWEST = NUM_PHOTOS // BLOCK * PARTS  # requests per epoch: each container stores adjacent samples of a block


@pytest.fixture(autouse=True)
def _no_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "MAX_GAP_BYTES", 0)  # only requested bytes are fetched


def serve_epochs(source: Any, epochs: int, **settings: Any) -> list[Row]:
    settings = {"shuffle": BLOCKS, "workers": 2, "workers_are": "threads", "drop_last": False, **settings}
    with open_loader(source, **settings) as loader:
        return [row for _ in range(epochs) for row in serve(loader)]


@pytest.mark.parametrize("copied", [False, True])
def test_blocks_are_fetched_whole_and_once(
    server: RangeServer, photos: ImageFolder, tmp_path: Path, copied: bool
) -> None:
    expected = serve_epochs(photos, 2)
    options: dict[str, Any] = {"local_cache": tmp_path / "copy", "bytes_ahead": 1} if copied else {}
    source = open_remote(server, photos, **options)
    before = source.store.requests
    assert serve_epochs(source, 2) == expected
    # Requests of one or two epochs, of the first batches, of batches that a busy machine needs before their block has
    # arrived, and of announcements for the next epoch.
    assert source.store.requests - before <= (2 * FEWEST if copied else 3 * FEWEST + 2 * 6 + 2 * PARTS)
    single = open_remote(server, photos, **({**options, "local_cache": tmp_path / "single"} if copied else {}))
    before = single.store.requests
    serve_epochs(single, 1, shuffle=True)
    assert single.store.requests - before > 2 * FEWEST
    if copied:
        assert source.store.num_bytes == photos.num_bytes


def test_virtual_epochs_fetch_most_blocks_whole(server: RangeServer, photos: ImageFolder) -> None:
    """Two passes in three epochs; the groups of blocks that a boundary divides are fetched sample by sample."""
    settings = {"epoch_samples": NUM_PHOTOS * 2 // 3}
    source, single = (open_remote(server, photos) for _ in range(2))
    rows = serve_epochs(source, 3, **settings)
    assert rows == serve_epochs(photos, 3, **settings)
    assert sorted(row[0] for row in rows) == sorted(2 * list(range(NUM_PHOTOS)))
    serve_epochs(single, 3, shuffle=True, **settings)
    assert source.store.requests < 0.75 * single.store.requests


def test_stored_blocks_are_not_kept_in_memory(server: RangeServer, photos: ImageFolder, tmp_path: Path) -> None:
    source = open_remote(server, photos, local_cache=tmp_path / "copy", bytes_ahead=1)
    everything = np.arange(NUM_PHOTOS)
    source.announce_blocks(everything)
    deadline = time.monotonic() + 60
    while not source.has_room and time.monotonic() < deadline:
        time.sleep(0.01)
    assert source.has_room
    assert source.local is not None
    assert source.local.has(everything).all()
    before = source.store.requests
    for index in (0, 17, 200):
        # Imitates a caller that looked just before the sample was stored.
        assert bytes(source._fetcher.take(index)) == photos.read(index)
    assert source.store.requests == before


def test_little_memory_fetches_sample_by_sample(server: RangeServer, photos: ImageFolder) -> None:
    source = open_remote(server, photos, bytes_ahead=photos.num_bytes // 40)
    assert not source.make_room(NUM_PHOTOS // 4)
    assert serve_epochs(source, 1) == serve_epochs(photos, 1)
    assert source.store.requests > 2 * FEWEST


@pytest.mark.parametrize("world_size", [2, 4])
def test_all_ranks_together_fetch_each_byte_once(
    server: RangeServer, photos: ImageFolder, tmp_path: Path, world_size: int
) -> None:
    sources = [open_remote(server, photos, local_cache=tmp_path / f"{rank}") for rank in range(world_size)]
    served: list[int] = []
    for rank, source in enumerate(sources):
        batch_size = 12 // world_size
        rows = serve_epochs(source, 1, rank=rank, world_size=world_size, batch_size=batch_size, pad=False)
        served += [row[0] for row in rows]
    assert sorted(served) == list(range(NUM_PHOTOS))
    ahead = sum(source.store.num_bytes for source in sources) - photos.num_bytes  # bytes of the next epoch
    assert 0 <= ahead < photos.num_bytes
    if world_size == 2:  # one lane per rank; with 4 ranks, two share a lane
        assert sum(source.store.requests for source in sources) < 2 * FEWEST + 2 * (6 + 6 * PARTS)


def test_worker_processes_fetch_ahead(server: RangeServer, photos: ImageFolder) -> None:
    server.delay_s = 0.05
    source = open_remote(server, photos)
    assert serve_epochs(source, 1, shuffle=True, workers_are="processes") == serve_epochs(photos, 1, shuffle=True)
    assert server.most_at_once > 2 * 6  # more than the current batches need


def test_a_worker_process_announces_its_own_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "get_worker_info", lambda: SimpleNamespace(num_workers=3))
    schedule = Schedule(n=100, batch_size=8, seed=1)
    source, cursor = Announced(), Cursor(0, 8)  # the second batch, then the fifth
    ahead = read_ahead.ReadAhead()
    ahead.advance(source, schedule, cursor)
    expected = [schedule.batch(0, position).tolist() for position in (8, 32, 56, 80)] + [schedule.batch(1, 8).tolist()]
    assert source.announced[:5] == expected
    ahead.advance(source, schedule, Cursor(0, 32))
    assert source.num_forgotten == 1  # at the start, when the second batch was expected


def test_only_epochs_whose_order_is_known_are_announced() -> None:
    order = open_own_order(lambda epoch: np.random.default_rng(epoch).permutation(100)[:40], 100, 0)
    schedule = Schedule(n=40, batch_size=8, order=order)
    source, ahead = Announced(), read_ahead.ReadAhead()
    for epoch in (0, 1):
        schedule.begin(epoch)
        for position in range(0, 40, 8):
            ahead.advance(source, schedule, Cursor(epoch, position))
        assert source.announced == [schedule.batch(epoch, position).tolist() for position in range(0, 40, 8)]
        assert source.num_forgotten == 1  # at the start
        source.announced.clear()


@pytest.mark.parametrize("order", [None, BlockShuffled(n=100, seed=1, block=5, group=4)])
def test_a_batch_overtaken_by_another_thread_is_announced_alone(order: BlockShuffled | None) -> None:
    schedule = Schedule(n=100, batch_size=8, seed=1, order=order)
    source, ahead = Announced(), read_ahead.ReadAhead()
    for position in (8, 16, 0):
        ahead.advance(source, schedule, Cursor(9, position))
    assert source.announced[-1] == schedule.batch(9, 0).tolist()
    assert source.num_forgotten == 1
    ahead.advance(source, schedule, Cursor(9, 24))
    assert source.num_forgotten == 1
    ahead.advance(source, schedule, Cursor(0, 0))  # the cursor of an earlier epoch
    assert source.num_forgotten == 2


class Announced(FaultySource):
    """A source that records announcements and has room for ten batches."""

    fetches = True

    def __init__(self) -> None:
        super().__init__(100, {})
        self.announced: list[list[int]] = []
        self.num_forgotten = 0

    @property
    def has_room(self) -> bool:
        return len(self.announced) < 10

    def announce(self, indices: np.ndarray) -> None:
        self.announced.append(indices.tolist())

    announce_blocks = announce

    def make_room(self, num_samples: int) -> bool:
        return True

    def forget(self) -> None:
        self.num_forgotten += 1
