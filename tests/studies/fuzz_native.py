"""Feeds mutated and truncated JPEGs and cached images to the native library, built with AddressSanitizer and UBSan.

`python fuzz_native.py --count 200000 --truncations 2000000`; it stops with exit code 1 at the first fault and prints
its report. The same seed gives the same inputs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import simplejpeg

from penstock.pipelines.native.build import SOURCES, compiler

SUPPORT = Path(__file__).resolve().parents[1] / "support"

HARNESS = SUPPORT / "native/fuzz.c"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# At a fixed address: otherwise a kernel may load the program where AddressSanitizer needs its own memory.
PLAIN = ("-std=c11", "-O1", "-g1", "-D_GNU_SOURCE", "-U_FORTIFY_SOURCE", "-fno-pie", "-no-pie")
FLAGS = (*PLAIN, "-Wall", "-Wextra", "-Werror", *SANITIZERS)
WRAPPED = ("pn_reserve", "pread")


def build(program: Path) -> Path:
    """Compile the harness with the library's files. Raises CalledProcessError if the compiler has no sanitizers."""
    sources = sorted(str(path) for path in SOURCES.glob("*.c"))
    wrapped = [f"-Wl,--wrap={name}" for name in WRAPPED]
    command = [*compiler(), *FLAGS, f"-I{SOURCES}", *wrapped, str(HARNESS), *sources, "-lm", "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def seeds() -> list[bytes]:
    """Return small whole files of all kinds that the decoder supports, and of some that it does not."""
    sys.path.append(str(SUPPORT / "images"))
    from crafted_jpegs import crafted_corpus
    from jpeg_samples import stoppable, unstoppable
    from odd_images import corpus, exif_segment, jpeg, luma, textured
    from progressive_jpegs import progressive_corpus, progressive_noise

    files = [data for name, data in stoppable().items() if len(data) < 9000 and not name.endswith("_48x64")]
    files += [data for name, data in unstoppable().items() if "progressive" in name]
    files += [progressive_noise(quality) for quality in (80, 100)]
    for height, width in ((9, 7), (16, 16), (24, 40)):
        pixels = np.ascontiguousarray(textured(48, 48)[:height, :width])
        files += [simplejpeg.encode_jpeg(pixels, 60, "RGB", kind) for kind in ("444", "422", "420", "440", "411")]
        files += [jpeg(pixels, quality=60, progressive=True, subsampling=kind) for kind in (0, 1, 2)]
        files += [jpeg(luma(pixels)[..., 0], quality=95, progressive=True)]
        files += [jpeg(pixels, quality=30, progressive=True, restart_marker_blocks=2)]
        files += [jpeg(luma(pixels)[..., 0], quality=60), jpeg(pixels, subsampling=2, restart_marker_blocks=1)]
    files += [odd.data for odd in corpus() if odd.name.startswith(("jpeg_orientation", "jpeg_icc_part", "jpeg_exif"))]
    start = files[-1]
    return [*files, start[:2] + exif_segment(6, big_endian=True) + start[2:], *crafted_corpus(), *progressive_corpus()]


def run(program: Path, count: int, truncations: int, seed: int) -> subprocess.CompletedProcess[str]:
    """Run the harness over the seeds."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, data in enumerate(seeds()):
            paths.append(Path(folder) / f"{number}.jpg")
            paths[-1].write_bytes(data)
        command = [str(program), str(count), str(truncations), str(seed), *map(str, paths)]
        return subprocess.run(command, capture_output=True, text=True, check=False)


def main() -> int:
    """Build, run, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200_000, help="mutated files")
    parser.add_argument("--truncations", type=int, default=2_000_000, help="truncated files")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        done = run(build(Path(folder) / "fuzz"), options.count, options.truncations, options.seed)
    print(done.stdout + done.stderr, end="")
    return int(done.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
