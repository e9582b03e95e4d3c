"""Measures indexes of data by URL: `python tests/studies/remote_index_scale.py FOLDER --samples 10000000`.

It lists a folder of --listed images on a stub S3 server, as one process does that indexes it. Then it writes the index
of --samples generated samples in --shards tars to FOLDER, serves it, and opens it in --ranks processes on each of two
nodes (with cache folders of their own), which look up random batches: seconds, memory and requests of each rank. From
this it predicts a billion samples in 100,000 shards. At last it counts what each of two nodes fetches in an epoch. It
prints a JSON record. The defaults are small.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import billion_samples
import numpy as np

from penstock.loaders import open_source
from penstock.loaders.data.indexes.bucket_index import PART_BYTES
from penstock.loaders.data.indexes.write_bucket_index import write_bucket_index
from penstock.loaders.data.labels.collect_texts import NO_TEXTS, RAISE
from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.samples.samples_writer import SamplesWriter
from penstock.loaders.data.samples.version import Container, Version
from penstock.loaders.data.sources.data import only_whole
from penstock.loaders.data.tars.tar_index import IndexSettings
from penstock.loaders.order.block_order import BlockShuffled
from penstock.loaders.order.order import Shuffled

BILLION, BILLION_SHARDS = 10**9, 100_000
PAGE, CLASSES, BATCH = 1000, 10, 256
REQUESTS = ("stat", "read", "list", "list_folder")


@contextmanager
def serve(folder: Path, listed: int) -> Iterator[tuple[str, Counter[str]]]:
    """Serve the files of `folder`, and a listing of `listed` images in CLASSES folders; yield the URL and counts."""
    counts: Counter[str] = Counter()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *values: object) -> None:
            """Stay silent."""

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
            counts[self.command if "list-type" not in query else "LIST"] += 1
            if "list-type" in query:
                body, status, total = list_page(query, listed), 200, 0
            else:
                file = folder / path.lstrip("/")
                total, status = file.stat().st_size if file.is_file() else 0, 404
                body = b""
                if total:
                    begin, end = 0, total - 1
                    wanted = self.headers.get("Range")
                    if wanted:
                        begin, end = (int(part) for part in wanted.removeprefix("bytes=").split("-"))
                    with file.open("rb") as opened:
                        opened.seek(begin)
                        body = opened.read(min(end, total - 1) + 1 - begin) if self.command == "GET" else b""
                    status = 206 if wanted else 200
            self.send_response(status)
            if status == 206:
                self.send_header("Content-Range", f"bytes {begin}-{begin + len(body) - 1}/{total}")
            self.send_header("Content-Length", str(total if self.command == "HEAD" else len(body)))
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", counts
    server.shutdown()


def list_page(query: dict[str, list[str]], listed: int) -> bytes:
    """Answer ListObjectsV2 for the folder images/, with PAGE objects per answer."""
    prefix = query.get("prefix", [""])[0]
    folder = prefix.removeprefix("images/").strip("/")
    if not folder:
        parts = [f"<CommonPrefixes><Prefix>images/{n}/</Prefix></CommonPrefixes>" for n in range(CLASSES)]
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(parts)}</ListBucketResult>".encode()
    first, total = int(query.get("continuation-token", ["0"])[0]), listed // CLASSES
    entries = [
        f"<Contents><Key>images/{folder}/{n:09}.jpg</Key><Size>110000</Size><ETag>&quot;{n}&quot;</ETag>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        for n in range(first, min(first + PAGE, total))
    ]
    more = first + PAGE < total
    token = f"<NextContinuationToken>{first + PAGE}</NextContinuationToken>" if more else ""
    truncated = f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}"
    return f"<ListBucketResult>{truncated}{''.join(entries)}</ListBucketResult>".encode()


def memory_mb() -> dict[str, float]:
    """Return RSS, USS (this process's alone) and PSS (shared pages divided among their users) in MB."""
    fields: Counter[str] = Counter()
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        fields[name] += int(rest.split()[0])
    uss = fields["Private_Clean"] + fields["Private_Dirty"]
    return {name: round(kb / 1000, 1) for name, kb in (("rss", fields["Rss"]), ("uss", uss), ("pss", fields["Pss"]))}


def open_as_rank(spec: str, index: str | None) -> dict[str, Any]:
    """Open data, look up batches of random samples, wait for the other ranks; return seconds, memory and requests."""
    counts: Counter[str] = Counter()

    def count(name: str, request: Any) -> Any:
        def counting(*given: Any, **named: Any) -> Any:
            counts[name] += 1
            return request(*given, **named)

        return counting

    for name in REQUESTS:
        setattr(ObjectStore, name, count(name, vars(ObjectStore)[name]))
    before, started = memory_mb(), time.perf_counter()
    source = open_source(spec) if index is None else open_source(spec, index=index)
    opened_s, opened, samples = time.perf_counter() - started, memory_mb(), only_whole(source).samples
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak_mb = int(status["VmHWM"].split()[0]) / 1000
    draw = np.random.default_rng(0)
    for _ in range(1000):
        some = draw.integers(0, len(source), BATCH)
        samples.container_of(some), samples.starts(some), samples.sizes[some], samples.labels_of(some)
    print("ready", flush=True)
    sys.stdin.readline()  # all ranks have mapped the index
    used = memory_mb()
    return {
        "samples": len(source),
        "open_s": round(opened_s, 2),
        "peak_above_start_mb": round(peak_mb - before["rss"], 1),
        "opened": {name: round(opened[name] - before[name], 1) for name in before},
        "used": {name: round(used[name] - before[name], 1) for name in before},
        "requests": dict(counts),
    }


def run_node(folder: Path, url: str, ranks: int, spec: str, index: str | None, first: int = 0) -> list[dict[str, Any]]:
    """Return the measurements of the ranks of a node, which open the data at once."""
    keys = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}
    keys |= {"XDG_CACHE_HOME": str(folder), "WORLD_SIZE": str(2 * ranks if ranks > 1 else 1)}
    folder.mkdir(exist_ok=True)
    started = [
        subprocess.Popen(
            [sys.executable, __file__, str(folder), "--open", spec, *([index] if index else [])],
            env={**os.environ, **keys, "RANK": str(first + rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    lines = []
    for word in ("", "go\n"):  # each ends when all have looked, because shared pages of the last process are private
        for process in started:
            assert process.stdin is not None
            process.stdin.write(word)
            process.stdin.flush()
        lines = [process.stdout.readline() for process in started if process.stdout is not None]
    for process in started:
        process.communicate()
    return list(map(json.loads, lines))


def write_index(folder: Path, samples: int, shards: int) -> dict[str, Any]:
    """Write the index of generated samples in tars; return its size and the time it took."""
    settings = IndexSettings(
        image=(), label=None, table=None, classes=None, floats=frozenset(), missing_labels=RAISE, text=NO_TEXTS
    )
    writer, per_shard = SamplesWriter(kind="tar files"), samples // shards
    writer.made_by, writer.classes = settings.digest(), [b"%d" % number for number in range(CLASSES)]
    starts = np.arange(per_shard) * billion_samples.STEP
    sizes = np.full(per_shard, billion_samples.SIZE)
    started = time.perf_counter()
    for shard in range(shards):
        name = b"s3://data/train-%06d.tar" % shard
        writer.add_container(Container(name, per_shard * billion_samples.STEP, Version(shard + 1)))
        first = shard * per_shard
        names = [b"%09d.jpg" % number for number in range(first, first + per_shard)]
        writer.add_samples(np.full(per_shard, shard), starts, sizes, names)
    writer.labels = np.arange(samples // shards * shards, dtype=np.int32) % CLASSES
    made = writer.save()
    made_s, started = time.perf_counter() - started, time.perf_counter()
    spec = b"s3://data/train-{000000..%06d}.tar" % (shards - 1)
    write_bucket_index(folder / "data/index", made, None, spec=spec, options={})
    num_bytes = sum(file.stat().st_size for file in (folder / "data/index").iterdir())
    return {
        "samples": len(made),
        "shards": shards,
        "generated_s": round(made_s, 1),
        "written_s": round(time.perf_counter() - started, 1),
        "mb": round(num_bytes / 1e6, 1),
        "bytes_per_sample": round(num_bytes / len(made), 2),
    }


def predict(index: dict[str, Any], alone: dict[str, Any], first: list[Any], link_mb_s: float) -> dict[str, Any]:
    """Return what a billion samples would take, in proportion to the measured samples."""
    scale = BILLION / index["samples"]
    gb = index["bytes_per_sample"] * BILLION / 1e9
    return {
        "samples": BILLION,
        "shards": BILLION_SHARDS,
        "index_gb": round(gb, 1),
        "download_s_at_link": round(gb * 1000 / link_mb_s),
        "link_mb_per_s": link_mb_s,
        "first_opening_of_all_ranks_s_here": round(max(rank["open_s"] for rank in first) * scale),
        "later_opening_of_a_process_s_here": round(alone["open_s"] * scale),
        "requests_of_a_node_first": 2 + round(gb * 1e9 / PART_BYTES),
        "requests_of_a_node_later": 2,
        "requests_without_an_index": "per node: 256 HEADs, and 100 pages for a * pattern; once: the tars' headers",
    }


def main() -> None:
    """Print the record, or the measurements of one rank."""
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--samples", type=int, default=100_000)
    options.add_argument("--shards", type=int, default=100)
    options.add_argument("--listed", type=int, default=20_000)
    options.add_argument("--ranks", type=int, default=8)
    options.add_argument("--link-mb-s", type=float, default=1000.0)
    options.add_argument("--open", nargs="+")
    given = options.parse_args()
    if given.open:
        print(json.dumps(open_as_rank(*given.open, *[None] * (2 - len(given.open)))), flush=True)
        sys.stdin.read()
        return
    folder: Path = given.folder
    with serve(folder, given.listed) as (url, counts):
        listed = run_node(folder / "lister", url, 1, "s3://data/images/", None)[0]
        listed["requests_on_the_wire"] = dict(counts)
        index = write_index(folder, given.samples, given.shards)
        spec, place = f"s3://data/train-{{000000..{given.shards - 1:06}}}.tar", "s3://data/index/"
        nodes = []
        for node in range(2):
            counts.clear()
            cache = folder / f"node{node}"
            ranks = run_node(cache, url, given.ranks, spec, place, node * given.ranks)
            nodes.append({"ranks": ranks, "requests_on_the_wire": dict(counts)})
        first = run_node(folder / "alone", url, 1, spec, place)[0]
        later = run_node(folder / "alone", url, 1, spec, place)[0]
    billion_samples.N, billion_samples.SHARDS = index["samples"], given.shards
    blocks = BlockShuffled(n=index["samples"], seed=1, block=64, group=256)
    cpuinfo = Path("/proc/cpuinfo").read_text()
    cpu = [line.split(":")[1].strip() for line in cpuinfo.splitlines() if line.startswith("model")]
    record = {
        "study": "remote_index_scale",
        "processor": f"{cpu[1]}, model {cpu[0]}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
        "listing_of_a_folder": listed,
        "index": index,
        "two_nodes": nodes,
        "one_process_first": first,
        "one_process_later": later,
        "predicted": predict(index, later, nodes[0]["ranks"], given.link_mb_s),
        "fetched_by_each_of_2_nodes": {
            "full shuffle": billion_samples.count_requests(Shuffled(index["samples"], 1), 2, holds_blocks=False),
            blocks.name: billion_samples.count_requests(blocks, 2, holds_blocks=True),
        },
    }
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
