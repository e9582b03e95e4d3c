"""A local copy that several programs use at a time, of which one is killed, and one on a disk that is full."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from constrained import LIMIT_S, mounted
from mounts import needs_mounts
from range_server import RangeServer
from remote_photos import open_loader
from served_rows import Row, serve

NUM_PHOTOS = 48
SLACK = 128 << 10  # several processes may each write a sample before they see what the others wrote
_PROGRAM = """
import json, sys, zlib
import torch
from penstock.loaders import create_loader, open_source
from penstock.pipelines import imagenet_train
url, options = json.loads(sys.argv[1])
source = open_source(url, bytes_ahead=1, **options)
with create_loader(source, pipeline=imagenet_train(24), dtype=torch.uint8, batch_size=6, seed=2, workers=2,
                   workers_are="threads", with_index=True) as loader:
    for epoch in range(3):
        for images, labels, index in loader:
            rows = [zlib.crc32(image.numpy().tobytes()) for image in images.permute(0, 2, 3, 1)]
            rows = list(zip(index.tolist(), labels.tolist(), rows))
            print(json.dumps([rows, source.local.num_bytes, source.store.num_bytes]), flush=True)
"""


@pytest.fixture
def url(server: RangeServer) -> str:
    """A tar of photos of noise, each of several blocks of a disk."""
    folder = server.root / "noise"
    folder.mkdir()
    with tarfile.open(server.root / "noise.tar", "w") as tar:
        for number in range(NUM_PHOTOS):
            pixels = np.random.default_rng(number).integers(0, 256, (80 + number % 32, 90, 3), np.uint8)
            path = folder / f"{number:03}.jpg"
            path.write_bytes(simplejpeg.encode_jpeg(pixels, 95, "RGB", "444"))
            tar.add(path, f"{'ab'[number % 2]}/{path.name}")
    return f"{server.url}/noise.tar"


@pytest.fixture
def rows(url: str) -> list[Row]:
    """Three epochs of it, without a copy."""
    with open_loader(url) as loader:
        return serve(loader) + serve(loader) + serve(loader)


def start(url: str, options: dict[str, Any], prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [*prefix, sys.executable, "-c", _PROGRAM, json.dumps([url, options])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(program: subprocess.Popen[str], rows: list[Row]) -> tuple[int, int, str]:
    """Check what a program served; return the most bytes that it saw on disk, the bytes it fetched, its errors."""
    output, errors = program.communicate(timeout=LIMIT_S)
    assert program.returncode == 0, errors
    told = [json.loads(line) for line in output.splitlines()]
    assert [tuple(row) for batch, _, _ in told for row in batch] == rows
    return max(on_disk for _, on_disk, _ in told), told[-1][2], errors


def test_programs_share_a_copy_while_one_is_killed(url: str, rows: list[Row], tmp_path: Path) -> None:
    size = os.path.getsize(tmp_path / "noise.tar")
    options = {"local_cache": str(tmp_path / "copy"), "local_bytes": size // 2}
    killed, *others = [start(url, options) for _ in range(3)]
    assert killed.stdout is not None
    for _ in range(5):
        killed.stdout.readline()
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    for program in [*others, start(url, options)]:  # and one that comes after
        most, fetched, errors = finish(program, rows)
        assert size // 4 < most <= size // 2 + SLACK
        assert errors == ""
    assert fetched < 2.8 * size  # the last served some of it from the copy


@needs_mounts
@pytest.mark.parametrize("kib", [4, 400])
def test_a_full_disk_is_one_warning(url: str, rows: list[Row], tmp_path: Path, kib: int) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    program = start(url, {"local_cache": str(copy)}, mounted(f"mount -t tmpfs -o size={kib}k tmpfs {copy}"))
    most, _, errors = finish(program, rows)
    assert most <= kib << 10
    assert errors.count("UserWarning") == errors.count("takes no more samples: No space left on device") == 1
