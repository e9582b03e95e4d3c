"""Compares random windows of images made by the native library and by the Python path: they must be equal to the bit.

`python random_windows.py PHOTOS --count 100000`: photos and generated images of every subsampling, as files, in a
lossless cache and in a cache of pixels; each window with and without AVX2; a quarter resized; half of them flipped;
half of images with an EXIF rotation. It stops with exit code 1 at the first difference; the same seed draws the same
windows.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.data.cache.format import Encoding
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.sources.contract import LocatedSource
from penstock.loaders.make.sample_reader import SampleReader
from penstock.pipelines.native.library import native_library
from penstock.pipelines.native.rows import ROW, NativeStage
from penstock.pipelines.resampling import resize_into
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.sample.resize import write_sample
from penstock.pipelines.spec import ImagePipeline

SUPPORT = Path(__file__).resolve().parents[1] / "support"


def write_images(root: Path) -> Path:
    """Write generated images of every subsampling to a folder."""
    sys.path.append(str(SUPPORT / "images"))
    import simplejpeg
    from jpeg_samples import stoppable, unstoppable
    from odd_images import exif_segment, jpeg, luma, textured

    files = {**stoppable(), **unstoppable()}
    for height, width, quality in ((190, 251, 92), (333, 128, 70), (80, 400, 98), (256, 256, 85)):
        pixels = textured(height, width)
        for kind in ("444", "422", "420", "440", "411"):
            data = simplejpeg.encode_jpeg(pixels, quality, "RGB", kind)
            turned = exif_segment(len(files) % 8 + 1)
            files[f"{kind}_{width}_{height}"] = data[:2] + turned + data[2:]
        files[f"grey_{width}_{height}"] = jpeg(luma(pixels)[..., 0], quality=quality)
        for number, options in enumerate(({}, {"subsampling": 2}, {"subsampling": 1, "restart_marker_blocks": 7})):
            files[f"progressive_{number}_{width}_{height}"] = jpeg(pixels, quality=quality, progressive=True, **options)
    (root / "class").mkdir(parents=True)
    for name, data in files.items():
        (root / "class" / f"{name}.jpg").write_bytes(data)
    return root


def sources(photos: Path | None, folder: Path) -> Iterator[tuple[LocatedSource, int]]:
    """Yield (images, their share of the windows); photos take ten times as long."""
    made = write_images(folder / "made")
    roots = [(made, 8)]
    if photos is not None:
        shutil.copytree(photos, folder / "photos" / "class")
        roots.append((folder / "photos", 2))
    for root, share in roots:
        yield ImageFolder(root), share
        for number, encoding in enumerate((Encoding(), Encoding(kind="raw", resize=96))):
            path = folder / f"{root.name}{number}.h5"
            build_cache(ImageFolder(root), path, encoding, workers=0)
            yield open_cache(path), share


def compare(library: ctypes.CDLL, source: LocatedSource, count: int, draw: random.Random) -> int:
    """Compare `count` windows; return how many the library made. Raises AssertionError if one differs."""
    taken = 0
    for number in range(count):
        sample, exif = number % len(source), draw.choice(("ignore", "apply"))
        pipeline = ImagePipeline(exif=exif)
        reader = SampleReader(source, ImageDecoder(pipeline, "simplejpeg"))
        item = reader.load(sample)
        w, h = draw.randint(1, item.width), draw.randint(1, item.height)
        x, y = (draw.choice((0, most, draw.randint(0, most))) for most in (item.width - w, item.height - h))
        size = (draw.randint(1, 64), draw.randint(1, 64)) if draw.randrange(4) == 0 else (h, w)
        flip = draw.random() < 0.5
        expected = torch.empty((1, *size, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
        write_sample(reader.crop(item, (x, y, w, h)), expected, flip, resize_into)
        for avx2 in (1, 0):
            library.pn_use_avx2(avx2)
            rows, images = np.zeros(1, ROW), np.zeros((1, *size, 3), np.uint8)
            stage = NativeStage(library, pipeline.max_pixels, apply_exif=exif == "apply")
            stage.load(rows, source.locate(np.array([sample]), rows))
            rows["window"], rows["flip"] = (x, y, w, h), flip
            rows["out_height"], rows["out_width"], rows["place"] = *size, (0, 0, size[1], size[0])
            stage.fill(rows, images)
            if rows["result"][0] == 0:
                taken += avx2
                same = np.array_equal(images, expected.permute(0, 2, 3, 1).numpy())
                assert same, (source.path(sample), (x, y, w, h), size, flip, exif, avx2)
    library.pn_use_avx2(1)
    return taken


def main() -> int:
    """Compare, and print the number of windows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path, nargs="?", help="a folder of JPEGs")
    parser.add_argument("--count", type=int, default=100_000, help="windows")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    library = native_library()
    assert library is not None, "the native library was not built"
    draw, done = random.Random(options.seed), 0
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        shares = list(sources(options.photos, Path(folder)))
        for source, share in shares:
            count = -(-options.count * share // sum(share for _, share in shares))
            taken = compare(library, source, count, draw)
            done += count
            print(
                f"{done:,} windows; of the last {count:,} {taken:,} were the library's: {source.describe()}", flush=True
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
