"""The ranks of a node ask a storage once: one indexes, lists and looks up, the others wait and read what it saved."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked_commands import Command, Commands
from photo_folder import photo
from processes import eventually
from range_server import HANG, RangeServer, s3_environment, serve_ranges
from tar_files import write_tar

from penstock.loaders.data.samples import once_per_node as once_per_node_module
from penstock.loaders.data.samples.once_per_node import once_per_node

RANKS, NUM_PHOTOS, NUM_TARS = 4, 12, 3
SCRIPT = """
import json, os, sys
from penstock.loaders import open_source
from penstock.loaders.data.remote.obstore_client import ObstoreClient

count = 0
def counted(request):
    def counting(*arguments, **named):
        global count
        count += 1
        return request(*arguments, **named)
    return counting

for name in ("stat", "read", "list_pages", "list_folder"):
    setattr(ObstoreClient, name, counted(getattr(ObstoreClient, name)))
spec, out, options = json.loads(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
if spec == "list":
    spec = [(f"s3://data/images/{'ab'[n % 2]}/{n:02}.jpg", n % 2) for n in range(12)]
openings = []
for _ in range(int(options.pop("openings", 1))):
    count = 0
    source = open_source(spec, **options)
    openings.append(count)
with open(out, "w") as file:
    json.dump([openings, source.content, source.labels([0, 1, 2]).tolist()], file)
"""
KINDS = {"tars": "s3://data/train-*.tar", "folder": "s3://data/images/", "list": "list", "table": "s3://data/t.csv"}
PROBES = {"tars": 0, "folder": 4, "list": 0, "table": 1}  # requests of each rank: names next to the data, its version


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    """A server of photos in tars, in a folder and in a table."""
    root = tmp_path / "data"
    for name in ("a", "b"):
        (root / "images" / name).mkdir(parents=True)
    files = {f"images/{'ab'[n % 2]}/{n:02}.jpg": photo(n) for n in range(NUM_PHOTOS)}
    for name, data in files.items():
        (root / name).write_bytes(data)
    for tar in range(NUM_TARS):
        members = [(name.removeprefix("images/"), data) for name, data in list(files.items())[tar::NUM_TARS]]
        write_tar(root / f"train-{tar}.tar", members)
    (root / "t.csv").write_text("path,label\n" + "".join(f"{name},{name[7]}\n" for name in files))
    with serve_ranges(tmp_path) as served:
        for name, value in s3_environment(served.url).items():
            monkeypatch.setenv(name, value)
        yield served


class Node:
    """Ranks on a machine with a cache folder of its own."""

    def __init__(self, commands: Commands, folder: Path, first: int = 0, world: int = RANKS) -> None:
        self._commands, self._folder, self._first, self._world = commands, folder, first, world
        folder.mkdir(exist_ok=True)
        (folder / "rank.py").write_text(SCRIPT)

    def start(self, rank: int, spec: str, **options: Any) -> Command:
        """Start a rank, which opens the data."""
        environment = {"XDG_CACHE_HOME": str(self._folder), "RANK": str(rank), "WORLD_SIZE": str(self._world)}
        environment |= {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        return self._commands.start(
            json.dumps(spec),
            self._folder / f"{rank}.json",
            json.dumps(options),
            script=self._folder / "rank.py",
            environment=environment,
        )

    def result(self, rank: int, command: Command) -> Any:
        """Return the requests of each opening of a rank, and what it opened."""
        assert command.wait() == 0, command.errors
        return json.loads((self._folder / f"{rank}.json").read_text())

    def run(self, spec: str, **options: Any) -> list[Any]:
        """Return the results of all ranks, which run at once."""
        ranks = range(self._first, self._first + RANKS)
        started = [self.start(rank, spec, **options) for rank in ranks]
        return [self.result(rank, command) for rank, command in zip(ranks, started, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_of_each_node_asks_the_storage(
    kind: str, server: RangeServer, commands: Commands, tmp_path: Path
) -> None:
    alone = Node(commands, tmp_path / "alone", world=1)
    (needed,), *what = alone.result(0, alone.start(0, KINDS[kind]))
    for node in range(2):
        before = server.requests["all"]
        found = Node(commands, tmp_path / f"node{node}", node * RANKS, 2 * RANKS).run(KINDS[kind])
        assert [rank[1:] for rank in found] == [what] * RANKS
        probes = PROBES[kind]
        assert sorted(openings[0] for openings, *_ in found) == [probes] * (RANKS - 1) + [needed]
        assert server.requests["all"] - before == sum(openings[0] for openings, *_ in found)


def test_a_later_opening_and_a_later_run_see_a_changed_tar(
    server: RangeServer, commands: Commands, tmp_path: Path
) -> None:
    node = Node(commands, tmp_path / "node")
    first = node.run(KINDS["tars"], openings=2)
    # Listing and index have a lock each: two ranks may each do one of them.
    assert all(1 <= sum(openings[number] > 0 for openings, *_ in first) <= 2 for number in range(2))
    tar = server.root / "data/train-0.tar"
    write_tar(tar, [("a/new.jpg", photo(99)), ("b/new.jpg", photo(98))])
    second = node.run(KINDS["tars"])
    assert len({content for _, content, _ in first + second}) == 2
    assert len({content for _, content, _ in second}) == 1


def test_another_rank_takes_over_from_a_rank_that_is_killed(
    server: RangeServer, commands: Commands, tmp_path: Path
) -> None:
    node, spec = Node(commands, tmp_path / "node"), KINDS["tars"]
    server.fault = lambda path, number: HANG
    killed = node.start(0, spec)
    assert eventually(lambda: server.requests["all"] > 0)
    others = {rank: node.start(rank, spec) for rank in range(1, RANKS)}
    server.fault = None
    killed.kill(group=True)
    found = [node.result(rank, command) for rank, command in others.items()]
    assert sorted(openings[0] > 0 for openings, *_ in found) == [False, False, True]
    assert len({content for _, content, _ in found}) == 1


def test_ranks_trust_what_another_one_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks open in any order, and each counts its own openings, as separate processes do."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    counts = [Counter[bytes](), Counter[bytes]()]

    def opens(rank: int, *, world: int = 2, fails: bool = False) -> bool:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        monkeypatch.setattr(once_per_node_module, "_openings", counts[rank])
        with once_per_node(b"x.index", "x") as is_done:
            if fails:
                raise ValueError("it fails")
        return is_done

    with pytest.raises(ValueError, match="fails"):
        opens(0, fails=True)
    assert [opens(1), opens(0), opens(0), opens(0), opens(1), opens(1)] == [False, True, False, False, True, True]
    for count in counts:  # a later run of the same command
        count.clear()
    assert [opens(0), opens(1), opens(1)] == [False, True, False]
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    counts[0].clear()
    assert not opens(0)
    counts[1].clear()
    late = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: late)
    assert not opens(1)
    monkeypatch.setattr(once_per_node_module.fcntl, "flock", no_locks)
    assert not opens(0)
    assert not opens(0, world=1)


def no_locks(fd: int, operation: int) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_a_process_forked_by_a_rank_does_not_keep_its_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Such as a worker that another thread starts meanwhile: the other ranks would wait until it ends."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    end, keep = os.pipe()
    with once_per_node(b"a.index", "making it"):
        child = os.fork()
        if not child:
            os.close(keep)
            os.read(end, 1)  # until the parent closes its end
            os._exit(0)
    is_free = False
    try:
        fd = os.open(next(tmp_path.rglob("a.lock")), os.O_RDWR)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_free = True
        os.close(fd)
        assert is_free
    finally:
        os.close(keep)
        os.waitpid(child, 0)
        os.close(end)
