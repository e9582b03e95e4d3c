"""Serves images from a server with random faults for some time, and checks every sample of every epoch.

`python remote_soak.py --minutes 30 --seed 0 --json FILE`: nginx serves tars; a proxy before it answers 503 for a
while, resets connections, cuts, slows and stalls bodies; nginx itself is killed and started again. Five loaders read
at the same time, each in a process of its own: in random order, by threads and by processes; by blocks with a local
cache; in random order with a local cache that holds half of the data; and one that is closed within each epoch and
resumed. Every image is compared with the truth, and every sample must be served once per epoch. An epoch that ends
with an error is begun again and counted. Threads, open files and memory must not grow. All faults are drawn from the
seed, although not at the same moments. Exit code 1 if anything was wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import multiprocessing
import os
import random
import re
import shutil
import socket
import struct
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

sys.path.extend(str(folder) for folder in (Path(__file__).resolve().parents[1] / "support").iterdir())  # as a script

import numpy as np
import psutil
import torch
import typer
from nginx_server import Nginx
from PIL import Image

from penstock.bench.record.environment import describe_environment
from penstock.loaders import Blocks, LoaderError, create_loader
from penstock.loaders.system.json_file import write_json
from penstock.pipelines import ImagePipeline

SAMPLES, SIDE, TARS, CLASSES, BATCH = 960, 160, 8, 4, 32
BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"
SHARES = {"reset": 0.005, "cut": 0.005, "slow": 0.005, "stall": 0.001}  # of the requests
SLOW_BYTES_PER_S, STALL_S = 200_000, 40
CALM_S, BURST_S, ALIVE_S, DEAD_S = (10, 40), (1, 30), (15, 60), (1, 15)  # drawn between these
STEP_S = 0.01  # a training step
CACHED_EPOCHS = 3  # then with an empty local cache again
FEWEST = 3  # epochs in a third
GROWTH = {"threads": 4, "files": 16, "mb": 64}  # from the first third of the epochs to the last one
BLOCKS = Blocks(samples=60, group=4)
LOADERS: dict[str, dict[str, Any]] = {
    "random, threads": {"shuffle": True, "workers_are": "threads"},
    "random, processes": {"shuffle": True, "workers_are": "processes"},
    "blocks, local cache": {"shuffle": BLOCKS, "workers_are": "threads", "local_cache": True},
    "random, half a local cache": {"shuffle": True, "workers_are": "threads", "local_cache": True, "local_bytes": 0.5},
    "resumed": {"shuffle": True, "workers_are": "threads"},
}


def write_data(folder: Path) -> Path:
    """Write tars of JPEGs of noise, and the pixels; return the file of the pixels."""
    draw = np.random.default_rng(0)
    truth = np.empty((SAMPLES, SIDE, SIDE, 3), np.uint8)
    for number in range(TARS):
        with tarfile.open(folder / f"{number}.tar", "w") as tar:
            for index in range(number * SAMPLES // TARS, (number + 1) * SAMPLES // TARS):
                photo = io.BytesIO()
                noise = Image.fromarray(draw.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))
                noise.save(photo, "JPEG", quality=95, subsampling=0)  # decoded as by Pillow, to the bit
                truth[index] = np.asarray(Image.open(photo))
                for suffix, data in (("jpg", photo.getvalue()), ("cls", str(index * CLASSES // SAMPLES).encode())):
                    member = tarfile.TarInfo(f"{index:06d}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    np.save(folder / "truth.npy", truth)
    return folder / "truth.npy"


class Proxy:
    """Passes requests on to a server, some of them badly."""

    def __init__(self, port: int, seed: int) -> None:
        self._port, self._draw = port, random.Random(seed)
        self.counts = Counter[str]()
        self._change_at, self._is_busy = 0.0, True

    def draw_fault(self) -> str:
        """Return the fault of the next request, or an empty text."""
        if time.monotonic() > self._change_at:
            self._is_busy = not self._is_busy
            self._change_at = time.monotonic() + self._draw.uniform(*(BURST_S if self._is_busy else CALM_S))
            self.counts["bursts"] += self._is_busy
        place = self._draw.random()
        if self._is_busy:
            return "503"
        for name, share in SHARES.items():
            if (place := place - share) < 0:
                return name
        return ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection."""
        there: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            while True:
                asked = await reader.readuntil(b"\r\n\r\n")
                fault = self.draw_fault()
                self.counts[fault or "right"] += 1
                if fault == "503":
                    writer.write(BUSY)
                    continue
                if fault == "reset":
                    break
                there = there or await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
                there[1].write(asked)
                head = await there[0].readuntil(b"\r\n\r\n")
                writer.write(head)
                length = re.search(rb"(?i)content-length: (\d+)", head)
                size = int(length[1]) if length and not asked.startswith(b"HEAD") else 0
                await self._copy(there[0], writer, size, fault)
        except (OSError, EOFError):
            self.counts["lost connections"] += 1
        for each in (writer, *(there or ())[1:]):
            with contextlib.suppress(OSError):  # closed already
                each.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.transport.abort()

    async def _copy(self, source: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int, fault: str) -> None:
        """Pass the body on. Raises EOFError where it is cut."""
        place = int(size * self._draw.random()) if fault in ("cut", "stall") else size
        while size:
            data = await source.read(min(size, 1 << 18))
            if not data:
                raise EOFError
            writer.write(data)
            await writer.drain()
            size -= len(data)
            self.counts["bytes"] += len(data)
            if fault == "slow":
                await asyncio.sleep(len(data) / SLOW_BYTES_PER_S)
            if fault in ("cut", "stall") and size <= place:
                if fault == "cut":
                    raise EOFError
                fault = ""
                await asyncio.sleep(STALL_S)


def run_proxy(port: int, seed: int, seconds: float, pipe: Any) -> None:
    """Run a proxy in this process; send its port, and its counts at the end."""

    async def run() -> None:
        proxy = Proxy(port, seed)
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 20, backlog=512)
        pipe.send(server.sockets[0].getsockname()[1])
        await asyncio.sleep(seconds)
        pipe.send(dict(proxy.counts) | {"processor_share": round(time.process_time() / seconds, 2)})
        await asyncio.sleep(1e6)

    asyncio.run(run())


class Reader:
    """Serves epochs of one loader and checks them."""

    def __init__(self, name: str, url: str, truth: Path, folder: Path, seed: int) -> None:
        self._settings = dict(LOADERS[name])
        self._cache = folder / name.replace(" ", "-") if "local_cache" in self._settings else None
        if "local_bytes" in self._settings:
            self._settings["local_bytes"] = int(self._settings["local_bytes"] * truth.stat().st_size)
        self._is_resumed, self._draw = name == "resumed", random.Random(f"{name} {seed}")
        self._url, self._truth = url, np.load(truth, mmap_mode="r")
        self._epoch = 0
        self._loader: Any = None
        self.result: dict[str, Any] = {"epochs": 0, "samples": 0, "wrong": 0, "missing": 0, "twice": 0, "errors": []}
        self.use: list[dict[str, float]] = []

    def _open(self) -> Any:
        if self._cache is not None:
            shutil.rmtree(self._cache, ignore_errors=True)
            self._settings["local_cache"] = self._cache
        pipeline = ImagePipeline(size=(SIDE, SIDE), crop="full", flip=0.0)
        usual: dict[str, Any] = {
            "batch_size": BATCH,
            "dtype": torch.uint8,
            "with_index": True,
            "drop_last": False,
            "workers": 2,
        }
        return create_loader(
            self._url, pipeline=pipeline, seed=self._epoch, requests=16, bytes_ahead=8 << 20, **usual, **self._settings
        )

    def _batches(self, deadline: float) -> Iterator[Any]:
        """Yield the batches of an epoch, from two loaders if it is resumed."""
        self._loader = self._loader or self._open()
        stop = self._draw.randrange(1, SAMPLES // BATCH) if self._is_resumed else None
        for number, batch in enumerate(self._loader):
            yield batch
            if number == stop or time.monotonic() > deadline:
                break
        if stop is not None and time.monotonic() < deadline:
            state = self._loader.state_dict()
            self._loader.close()
            self._loader = self._open()
            self._loader.load_state_dict(state)
            yield from self._loader

    def serve_epoch(self, deadline: float) -> None:
        """Serve an epoch; one that the deadline cuts is not counted, except for wrong images."""
        seen = np.zeros(SAMPLES, np.int64)
        for images, labels, index in self._batches(deadline):
            got, where = images.permute(0, 2, 3, 1).numpy(), index.numpy()
            right = [np.array_equal(one, self._truth[place]) for one, place in zip(got, where, strict=True)]
            right &= labels.numpy() == where * CLASSES // SAMPLES
            seen += np.bincount(where, minlength=SAMPLES)
            self.result["samples"] += len(where)
            self.result["wrong"] += int((~right).sum())
            if time.monotonic() > deadline:
                return
            time.sleep(STEP_S)
        self.result["epochs"] += 1
        if self._cache is not None and self.result["epochs"] % CACHED_EPOCHS == 0:
            self._close()
        self.result["missing"] += int((seen == 0).sum())
        self.result["twice"] += int((seen > 1).sum())
        self._count_use()

    def run(self, deadline: float) -> None:
        """Serve epochs until the deadline."""
        while time.monotonic() < deadline:
            try:
                self.serve_epoch(deadline)
            except LoaderError as error:
                self.result["errors"].append(re.sub(r"127\.0\.0\.1:\d+", "HOST", str(error))[:300])
                self._close()
        self.result["growth"] = growth = self._growth()
        self.result["leaks"] = [name for name, limit in GROWTH.items() if growth.get(name, 0) > limit]

    def _close(self) -> None:
        """Close the loader; the next epoch has a new one, with another order and an empty cache."""
        if self._loader is not None:
            self._loader.close()
        self._loader, self._epoch = None, self._epoch + 1

    def _count_use(self) -> None:
        """Note the threads, open files and private memory of this process and its children."""
        use = Counter[str]()
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                memory = process.memory_info()
                own = {"threads": process.num_threads(), "files": process.num_fds()}
                use.update(own | {"mb": (memory.rss - memory.shared) >> 20})
        self.use.append(dict(use))

    def _growth(self) -> dict[str, float]:
        third = len(self.use) // 3
        if third < FEWEST:  # the pools of threads still grow
            return {}
        medians = [{k: float(np.median([u[k] for u in part])) for k in GROWTH} for part in self._thirds(third)]
        return {name: medians[1][name] - medians[0][name] for name in GROWTH}

    def _thirds(self, third: int) -> list[list[dict[str, float]]]:
        return [self.use[:third], self.use[-third:]]


def run_reader(name: str, url: str, truth: Path, folder: Path, seed: int, seconds: float, pipe: Any) -> None:
    """Run a reader in this process and send its result."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    reader = Reader(name, url, truth, folder, seed)
    deadline = time.monotonic() + seconds
    try:
        reader.run(deadline)
    except Exception as error:
        reader.result["errors"].append(f"crashed: {type(error).__name__}: {error}"[:300])
        reader.result["leaks"] = []
    pipe.send(reader.result)
    os._exit(0)


def start(target: Callable[..., None], *arguments: Any) -> tuple[Any, Any]:
    """Start a process, and return it with the end of its pipe."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(*arguments, theirs))
    process.start()
    theirs.close()
    return process, ours


def kill_now_and_then(server: Nginx, draw: random.Random, deadline: float) -> int:
    """Kill the server and start it again until the deadline; return how often."""
    kills = 0
    while (pause_s := draw.uniform(*ALIVE_S)) < deadline - time.monotonic():
        time.sleep(pause_s)
        server.kill()
        time.sleep(draw.uniform(*DEAD_S))
        kills += server.start()
    time.sleep(max(0.0, deadline - time.monotonic()))
    return kills


def main(
    minutes: Annotated[float, typer.Option(help="How long.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the faults.")] = 0,
    only: Annotated[str, typer.Option(help="Loaders whose name contains this.")] = "",
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write the record.")] = None,
) -> None:
    """Run the soak and print what came of it."""
    seconds = minutes * 60
    names = [name for name in LOADERS if only in name]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        truth = write_data(place)
        server = Nginx(place, place / "nginx", requests=10_000)
        proxy, counts = start(run_proxy, server.port, seed, seconds)
        url = f"http://127.0.0.1:{counts.recv()}/{{0..{TARS - 1}}}.tar"
        readers = {name: start(run_reader, name, url, truth, place, seed, seconds) for name in names}
        kills = kill_now_and_then(server, random.Random(seed), time.monotonic() + seconds)
        faults = counts.recv() | {"kills": kills}
        found = {}
        for name, (process, pipe) in readers.items():
            found[name] = pipe.recv() if pipe.poll(300) else {"errors": ["hangs"], "leaks": []}
            process.kill()
        proxy.kill()
        server.kill()
    print(faults)
    for name, result in found.items():
        print(name, result, sep=": ")
    is_right = not any(r["errors"] or r["leaks"] or r["wrong"] or r["missing"] or r["twice"] for r in found.values())
    print("every sample once per epoch, none wrong, nothing ended, no leak" if is_right else "NOT right")
    if json_file is not None:
        record = {"minutes": minutes, "seed": seed, "shares": SHARES, "faults": faults, "loaders": found}
        write_json(json_file, {"machine": describe_environment("cpu"), "is_right": is_right, **record})
    raise typer.Exit(0 if is_right else 1)


if __name__ == "__main__":
    typer.run(main)
