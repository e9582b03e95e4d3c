"""Counts the processor time per photo for data on a server, beside the local disk and other loaders.

`python remote_cpu.py PHOTOS --rounds 5 --json FILE`: user and system time of the client's processes only, per photo,
for epochs of 3,200 photos in eight tars: from the disk; from nginx, without a local cache, with an empty and a filled
one, in random order and by blocks. `--peers PYTHON`, an interpreter that has webdataset, litdata and
mosaicml-streaming, adds these loaders at the same server (remote_cpu_peers.py says how they are set up). `--tree
before=FOLDER --tree after=FOLDER` compares packages; FOLDER contains `penstock`. Everything is measured twice: with
decoding, a random crop of 224 pixels and a flip, and as bytes alone. Each measurement is a process of its own, after
the index was made; rounds alternate; the table has medians.

In the column "first epoch" the local cache is empty, and starting the workers counts. Without a local cache, only
later epochs count: the first one also fetches a part of the second one ahead.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

sys.path.extend(str(folder) for folder in (Path(__file__).resolve().parents[1] / "support").iterdir())  # as a script

import numpy as np
import torch
import typer
from nginx_server import Nginx
from remote_cpu_peers import BATCH, PEERS, SIZE, WORKERS, count_bytes, measure

from penstock.bench.record.environment import describe_environment
from penstock.loaders import Blocks, create_loader, open_source
from penstock.loaders.system.json_file import write_json
from penstock.pipelines import imagenet_train

TARS, EPOCHS, KEPT_REQUESTS, LIMIT_S = 8, 3, 1000, 240
DISK = "disk"
BLOCKS = Blocks(samples=100, group=4)
AHEAD: dict[str, Any] = {"bytes_ahead": 32 << 20}  # of 352 MB; a sample that two epochs wait for is fetched once
VARIANTS: dict[str, dict[str, Any]] = {
    DISK: {"shuffle": True},
    "HTTP": {"shuffle": True, **AHEAD},
    "HTTP, local cache": {"shuffle": True, "local_cache": True, **AHEAD},
    "HTTP, blocks, local cache": {"shuffle": BLOCKS, "local_cache": True, **AHEAD},
}
MOST_AHEAD = 64  # batches, where no bytes are decoded
NO_FIRST = (DISK, "HTTP")  # without a local cache


def write_tars(photos: Path, folder: Path, number: int) -> None:
    """Write `number` photos with labels into tars, in random order."""
    files = sorted(path for path in photos.iterdir() if path.is_file())
    order = [files[k % len(files)] for k in range(number)]
    random.Random(0).shuffle(order)
    for tar in range(TARS):
        with tarfile.open(folder / f"{tar}.tar", "w") as members:
            for k in range(tar * number // TARS, (tar + 1) * number // TARS):
                label = str(files.index(order[k]) % 10).encode()
                for suffix, data in (("jpg", order[k].read_bytes()), ("cls", label)):
                    member = tarfile.TarInfo(f"{k:07d}.{suffix}")
                    member.size = len(data)
                    members.addfile(member, io.BytesIO(data))


class Received:
    """Receives the bytes of photos in random order, as a loader does, and leaves it at that."""

    def __init__(self, source: Any) -> None:
        self._source, self._coming = source, deque[Any]()
        self._batches = self._draw(np.random.default_rng(0))

    def _draw(self, generator: np.random.Generator) -> Iterator[Any]:
        while True:
            order = generator.permutation(len(self._source))
            yield from (order[begin : begin + BATCH] for begin in range(0, len(order) - BATCH + 1, BATCH))

    def __iter__(self) -> Iterator[list[int]]:
        source, announces = self._source, hasattr(self._source, "announce")
        for _ in range(len(source) // BATCH):
            while not self._coming or (announces and source.has_room and len(self._coming) < MOST_AHEAD):
                self._coming.append(next(self._batches))
                if announces:
                    source.announce(self._coming[-1])
            yield [count_bytes(source.read(int(index))) for index in self._coming.popleft()]


def measure_here(name: str, where: str, what: str) -> list[list[float]]:
    """Measure one of VARIANTS in this process."""
    settings = dict(VARIANTS[name])
    with tempfile.TemporaryDirectory() as cache:
        if "local_cache" in settings:
            settings["local_cache"] = cache
        if what == "bytes":
            del settings["shuffle"]
            return measure(Received(open_source(where, **settings)), EPOCHS, len)
        usual = {"pipeline": imagenet_train(SIZE), "batch_size": BATCH, "dtype": torch.uint8, "workers": WORKERS}
        with create_loader(where, **usual, **settings) as loader:
            return measure(loader, EPOCHS, lambda batch: len(batch[1]))


def run(command: list[str], environment: dict[str, str]) -> list[list[float]] | None:
    """Measure in another process; None if it failed."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        out, errors = "", f"no end within {LIMIT_S} s"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    lines = [line for line in out.splitlines() if line.startswith("[[")]
    if not lines:
        print(f"{' '.join(command[1:])[-200:]} failed: {errors[-1500:]}", flush=True)
        return None
    found: list[list[float]] = json.loads(lines[-1])
    return found


def contenders(
    folder: Path, url: str, trees: dict[str, str], peers: str | None, only: str
) -> dict[tuple[str, str], tuple[list[str], dict[str, str]]]:
    """Return the command and environment of each measurement, by name and what it does."""
    tars = f"{{0..{TARS - 1}}}.tar"
    here, found = str(Path(__file__).resolve()), {}
    for what in ("decode", "bytes"):
        for tree, package in trees.items():
            own = {"XDG_CACHE_HOME": str(folder / f"cache-{tree}")} | ({"PYTHONPATH": package} if package else {})
            for name, settings in VARIANTS.items():
                if what == "bytes" and settings["shuffle"] is BLOCKS:
                    continue
                where = f"{folder}/data/{tars}" if name == DISK else f"{url}/data/{tars}"
                command = [sys.executable, here, where, "--measure", name, "--what", what]
                found[f"{tree} {name}".strip(), what] = (command, own)
        for name in PEERS if peers else ():
            script = str(Path(__file__).with_name("remote_cpu_peers.py"))
            command = [str(peers), script, "measure", name, f"{url}/data", what, str(EPOCHS)]
            found[name, what] = (command, {"TARS": str(TARS), "PYTHONWARNINGS": "ignore"})
    return {key: value for key, value in found.items() if only in key[0]}


def summarize(rounds: dict[str, list[list[list[float]]]], trees: dict[str, str]) -> dict[str, dict[str, float]]:
    """Return medians in milliseconds per photo, and the ratio to the disk of the same package, or of the last one."""
    found: dict[str, dict[str, float]] = {}
    for name, all_rounds in rounds.items():
        values = {"later": statistics.median(epoch[0] for epochs in all_rounds for epoch in epochs[1:])}
        if not name.endswith(NO_FIRST):
            values["first"] = statistics.median(epochs[0][0] for epochs in all_rounds)
        found[name] = values
    for name, values in found.items():
        tree = next((tree for tree in trees if tree and name.startswith(f"{tree} ")), list(trees)[-1])
        disk = found.get(f"{tree} {DISK}".strip(), {}).get("later")
        if disk:
            values |= {f"{column} / disk": values[column] / disk for column in ("first", "later") if column in values}
    return found


def print_table(what: str, found: dict[str, dict[str, float]]) -> None:
    """Print a table of the medians."""
    print(f"\n| {what} | first epoch, ms per photo | later epochs, ms per photo | to the disk: first | later |")
    print("|---|--:|--:|--:|--:|")
    for name, values in found.items():
        cells = [values.get(column) for column in ("first", "later", "first / disk", "later / disk")]
        print(f"| {name} | " + " | ".join("" if cell is None else f"{cell:.2f}" for cell in cells) + " |", flush=True)


def main(
    photos: Annotated[str, typer.Argument(help="A folder of photos.")],
    rounds: Annotated[int, typer.Option(help="Rounds of each loader.")] = 3,
    number: Annotated[int, typer.Option(help="Photos per epoch.")] = 3200,
    peers: Annotated[str | None, typer.Option(help="A Python that has the other loaders.")] = None,
    tree: Annotated[list[str] | None, typer.Option(help="NAME=FOLDER that contains a package penstock.")] = None,
    only: Annotated[str, typer.Option(help="Loaders whose name contains this.")] = "",
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write the record.")] = None,
    measured: Annotated[str | None, typer.Option("--measure", hidden=True)] = None,
    what: Annotated[str, typer.Option("--what", hidden=True)] = "decode",
) -> None:
    """Measure in alternating rounds and print medians."""
    if measured is not None:
        print(json.dumps(measure_here(measured, photos, what)), flush=True)
        return
    trees = {name: folder for name, _, folder in (one.partition("=") for one in tree or [])} or {"": ""}
    found: dict[tuple[str, str], list[list[list[float]]]] = {}
    with tempfile.TemporaryDirectory(prefix="remote-cpu-") as temporary:
        folder = Path(temporary)
        data = folder / "data"
        data.mkdir()
        write_tars(Path(photos), data, number)
        if peers:
            subprocess.run([peers, Path(__file__).with_name("remote_cpu_peers.py"), "write", data], check=True)
        server = Nginx(folder, folder / "nginx", requests=KEPT_REQUESTS)
        try:
            measurements = contenders(folder, server.url, trees, peers, only)
            for number_of_round in range(rounds):
                for key, (command, environment) in measurements.items():
                    begin = time.monotonic()
                    if (epochs := run(command, environment)) is not None:
                        found.setdefault(key, []).append(epochs)
                        text = ", ".join(f"{ms:.2f}" for ms, *_ in epochs)
                        took_s = time.monotonic() - begin
                        print(f"round {number_of_round}: {': '.join(key)}: {text} ms, {took_s:.0f} s", flush=True)
        finally:
            server.stop()
    tables = {}
    for each in ("decode", "bytes"):
        tables[each] = summarize({key[0]: value for key, value in found.items() if key[1] == each}, trees)
        print_table(each, tables[each])
    if json_file is not None:
        raw = {f"{name}: {what}": value for (name, what), value in found.items()}
        record = {"medians_ms": tables, "rounds_ms_photos_s": raw, "load_average": os.getloadavg()}
        write_json(json_file, {"machine": describe_environment("cpu"), **record})


if __name__ == "__main__":
    typer.run(main)
