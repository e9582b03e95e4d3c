"""Counts the processor time of WebDataset, LitData and MosaicML Streaming for photos on a server; see remote_cpu.py.

It runs with an interpreter that has these packages: `remote_cpu_peers.py write FOLDER` writes the formats of LitData
and Streaming from FOLDER/*.tar, and `remote_cpu_peers.py measure NAME URL decode|bytes EPOCHS` prints the epochs, each
as [milliseconds per photo, photos, seconds]. WebDataset reads http:// through curl; LitData and Streaming cannot read
http://, so they read the same server through their clients for S3.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import random
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image
from torch.utils.data import DataLoader

BATCH, SIZE, WORKERS = 64, 224, 2


def processor_s() -> float:
    """Return the processor time of this process, its children, and those that have ended."""
    total = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


def measure(loader: Any, epochs: int, count: Callable[[Any], int]) -> list[list[float]]:
    """Return [milliseconds of the processor per photo, photos, seconds] for each epoch."""
    found = []
    for _ in range(epochs):
        begin, used, photos = time.perf_counter(), processor_s(), 0
        for batch in loader:
            photos += count(batch)
        found.append([1000 * (processor_s() - used) / photos, photos, time.perf_counter() - begin])
    return found


def crop(data: bytes) -> torch.Tensor:
    """Return a random crop of a photo, flipped half the time, as users write it with Pillow."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    (width, height), box = image.size, (0, 0, *image.size)
    for _ in range(10):
        area, ratio = width * height * random.uniform(0.08, 1), math.exp(random.uniform(-1, 1) * math.log(4 / 3))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            x, y = random.randint(0, width - w), random.randint(0, height - h)
            box = (x, y, x + w, y + h)
            break
    image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def count_bytes(data: bytes) -> int:
    """Return the size of a photo that is only received; each byte page is touched."""
    return len(data) + 0 * sum(data[::4096])


MAKE: dict[str, Callable[[bytes], Any]] = {"decode": crop, "bytes": count_bytes}


def read_tars(folder: Path) -> Iterator[tuple[bytes, int]]:
    """Yield the photos and labels of tars."""
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                if member.name.endswith(".jpg"):
                    photo = file.read()
                else:
                    yield photo, int(file.read())


class OneTar:
    """Reads a sample for LitData's writer."""

    def __init__(self, folder: Path) -> None:
        self.samples = list(read_tars(folder))

    def __call__(self, index: int) -> dict[str, Any]:
        photo, label = self.samples[index]
        return {"image": photo, "label": label}


def write(folder: Path) -> None:
    """Write the formats."""
    torchvision()
    import litdata
    from streaming import MDSWriter

    with MDSWriter(out=str(folder / "streaming"), columns={"image": "bytes", "label": "int"}) as out:
        for photo, label in read_tars(folder):
            out.write({"image": photo, "label": label})
    reader = OneTar(folder)
    indices = list(range(len(reader.samples)))
    litdata.optimize(reader, indices, str(folder / "litdata"), chunk_bytes="32MB", num_workers=1, mode="overwrite")


def torchvision() -> None:
    """Import torchvision, which Streaming imports, beside a torch for CPUs only: its operators are not needed."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    torchvision.library = library  # type: ignore[attr-defined]
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    with contextlib.suppress(ImportError):
        import torchvision as _  # noqa: F401


def by_webdataset(url: str, cache: str, make: Callable[[bytes], Any]) -> Any:
    """Return WebDataset's loader, as its documentation builds it."""
    import webdataset

    urls = [f"{url}/{number}.tar" for number in range(int(os.environ["TARS"]))]
    data = webdataset.WebDataset(urls, shardshuffle=len(urls), empty_check=False).shuffle(200)
    pairs = data.to_tuple("jpg", "cls").map_tuple(make, int).batched(BATCH, partial=False)
    return webdataset.WebLoader(pairs, batch_size=None, num_workers=WORKERS, persistent_workers=True)


def by_litdata(url: str, cache: str, make: Callable[[bytes], Any]) -> Any:
    """Return LitData's loader over S3."""
    import litdata
    from litdata.streaming import downloader
    from litdata.streaming.resolver import Dir

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it has no option for a server without TLS
    where = Dir(path=cache, url="s3://data/litdata")
    data = litdata.StreamingDataset(
        where, shuffle=True, drop_last=False, transform=lambda item, *_: (make(item["image"]), item["label"])
    )
    settings = {"num_workers": WORKERS, "persistent_workers": WORKERS > 0, "drop_last": True}
    return litdata.StreamingDataLoader(data, batch_size=BATCH, shuffle=True, **settings)


def by_streaming(url: str, cache: str, make: Callable[[bytes], Any]) -> Any:
    """Return Streaming's data set over S3 in torch's loader."""
    torchvision()
    from streaming import StreamingDataset

    class Photos(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            item = super().__getitem__(index)
            return make(item["image"]), item["label"]

    data = Photos(remote="s3://data/streaming", local=cache, shuffle=True, batch_size=BATCH)
    return DataLoader(data, BATCH, num_workers=WORKERS, persistent_workers=True, drop_last=True)


PEERS: dict[str, Callable[..., Any]] = {
    "WebDataset": by_webdataset,
    "LitData": by_litdata,
    "Streaming": by_streaming,
}


def main() -> None:
    """Do what the arguments say."""
    if sys.argv[1] == "write":
        return write(Path(sys.argv[2]))
    name, url, what, epochs = sys.argv[2:]
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    server = url.rpartition("/")[0]
    os.environ.update(keys, AWS_DEFAULT_REGION="us-east-1", AWS_ENDPOINT_URL=server, S3_ENDPOINT_URL=server)
    os.environ["AWS_ALLOW_HTTP"] = "true"
    with tempfile.TemporaryDirectory() as cache:
        loader = PEERS[name](url, cache, MAKE[what])
        print(json.dumps(measure(loader, int(epochs), lambda batch: len(batch[1]))), flush=True)
        os._exit(0) if name != "Streaming" else None
    return None


if __name__ == "__main__":
    main()
