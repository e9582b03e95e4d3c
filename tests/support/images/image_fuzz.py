"""Mutated images, and their decoding by every decoder."""

from __future__ import annotations

import random
import resource
import signal
from collections import Counter
from pathlib import Path
from types import FrameType

import jpeg_parts as jp
import numpy as np
import simplejpeg
from odd_images import corpus, encoded, exif_segment, jpeg, luma, textured
from PIL import Image

MAX_PIXELS = 60_000
SECONDS_PER_INPUT = 10
HEADROOM = 256 << 20  # bytes of address space that a decode may use
DECODERS = ("simplejpeg", "turbojpeg", "pillow")


def seeds() -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Whole files to start from: JPEGs, PNGs, and the other formats."""
    rgb = textured(56, 72)
    jpegs = [simplejpeg.encode_jpeg(rgb, 80, "RGB", s) for s in ("444", "422", "420", "440", "411")]
    jpegs += [
        jpeg(luma(rgb)[..., 0], quality=80),
        jpeg(rgb, quality=80, progressive=True, subsampling=2),
        jpeg(rgb, quality=80, restart_marker_blocks=2, subsampling=2),
        jpeg(rgb, quality=80, restart_marker_rows=1),
        jpeg(rgb, quality=80, progressive=True, restart_marker_blocks=5),
        encoded(Image.fromarray(rgb).convert("CMYK"), "JPEG"),
        jp.insert(jpegs[2], exif_segment(6, thumbnail=jpeg(rgb[::4, ::4]))),
    ]
    accepted = [odd for odd in corpus() if odd.code is None and len(odd.data) < 12_000]
    jpegs += [odd.data for odd in accepted if odd.name in ("jpeg_non_interleaved", "jpeg_ycck_420", "jpeg_factors_410")]
    pngs = [odd.data for odd in accepted if odd.name.startswith("png_") or odd.name == "apng"]
    others = [odd.data for odd in accepted if odd.name.startswith(("gif", "bmp", "webp"))]
    return jpegs, pngs, others


def mutate(data: bytes, pool: list[bytes], rng: random.Random) -> bytes:
    """Damage a file: flips, overwrites, cuts, gaps, insertions, splices, header fields, stray markers."""
    out = bytearray(data)
    at = rng.randrange(len(out))
    kind = rng.randrange(9)
    if kind == 0:
        for _ in range(rng.choice((1, 1, 1, 3, 10))):
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        for _ in range(rng.choice((1, 1, 3, 10))):
            out[rng.randrange(len(out))] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
    elif kind == 2:
        del out[at:]
    elif kind == 3:
        del out[at : at + rng.choice((1, 2, 4, 50, 500))]
    elif kind == 4:
        out[at:at] = rng.randbytes(rng.choice((1, 2, 4, 40)))
    elif kind == 5:
        other = rng.choice(pool)
        out[at:] = other[rng.randrange(len(other)) :]
    elif kind == 6:
        for _ in range(rng.choice((1, 2))):
            out[rng.randrange(min(700, len(out)))] = rng.choice((0, 1, 0xFF, rng.randrange(256)))
    elif kind == 7:
        out[at : at + 2] = bytes((0xFF, rng.randrange(256)))
    else:
        length = rng.choice((2, 16, 300))
        start = rng.randrange(len(out))
        out[at : at + length] = out[start : start + length]
    return bytes(out)


def make_inputs(first: int, last: int) -> list[bytes]:
    """Return inputs [first, last): 6 of 10 are JPEGs, 3 PNGs, 1 of another format. Each has its own seed."""
    groups = seeds()
    inputs = []
    for number in range(first, last):
        rng = random.Random(number)
        pool = groups[(0, 0, 0, 0, 0, 0, 1, 1, 1, 2)[number % 10]]
        data = mutate(rng.choice(pool), pool, rng)
        inputs.append(mutate(data, pool, rng) if rng.random() < 0.2 and data else data)
    return inputs


class TooSlow(BaseException):
    """Raised by the alarm."""


def _alarm(number: int, frame: FrameType | None) -> None:
    raise TooSlow


def run(inputs: list[bytes], first: int, progress: Path) -> dict[str, object]:
    """Decode all inputs with all decoders, whole and in part; return counts and findings.

    Limits this process's memory. The progress file contains the number of the current input, to identify a crash.
    """
    from penstock.pipelines.errors import LoaderError
    from penstock.pipelines.sample.decode import ImageDecoder
    from penstock.pipelines.spec import ImagePipeline

    decoders = [ImageDecoder(ImagePipeline(max_pixels=MAX_PIXELS, exif="apply"), name) for name in DECODERS]
    for decoder in decoders:
        for data in (jpeg(textured(8, 8)), encoded(textured(8, 8), "PNG"), encoded(textured(8, 8), "WEBP")):
            decoder.full(data)  # load plug-ins and tables before memory is limited
    virtual = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    # Only the soft limit: a hard one would refuse a second call in a process that has grown since.
    resource.setrlimit(resource.RLIMIT_AS, (virtual + HEADROOM, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.signal(signal.SIGALRM, _alarm)
    verdicts: Counter[str] = Counter()
    findings: list[tuple[int, str]] = []

    def attempt(decoder: ImageDecoder, data: bytes, share: int, poison: int) -> tuple[str, np.ndarray | None]:
        memory = getattr(decoder._jpeg, "_memory", None)
        if memory is not None:
            memory._kept.fill(poison)  # imitates an earlier image
        signal.alarm(SECONDS_PER_INPUT)
        try:
            probe = decoder.probe(data)
            pixels = decoder.window(data, probe, (0, 0, probe.width, -(-probe.height // share)))
            if pixels.dtype != np.uint8 or pixels.shape != (-(-probe.height // share), probe.width, 3):
                return f"shape {pixels.shape}", None
            return "accepted", pixels.copy()
        except LoaderError as error:
            return error.code, None
        except (Exception, TooSlow) as error:
            return f"raised {type(error).__name__}: {error}"[:200], None
        finally:
            signal.alarm(0)

    with progress.open("wb", buffering=0) as file:
        for number, data in enumerate(inputs, first):
            file.seek(0)
            file.write(b"%09d" % number)
            outcomes = [attempt(d, data, share, 50 * share + i) for i, d in enumerate(decoders) for share in (1, 3)]
            texts = {text for text, _ in outcomes}
            verdicts[outcomes[0][0]] += 1
            if len(texts) > 1 or not texts <= {"accepted"} | {t for t in texts if t.startswith("E-")}:
                findings.append((number, " | ".join(text for text, _ in outcomes)))
            elif texts == {"accepted"}:
                findings += [(number, found) for found in _differences([p for _, p in outcomes if p is not None])]
    return {"verdicts": verdicts, "findings": findings}


def _differences(pixels: list[np.ndarray]) -> list[str]:
    """pixels: whole and top third of each decoder, alternating. Visible poison would differ between all."""
    found = [
        f"{name}: the top third is not the top of the whole"
        for name, whole, top in zip(DECODERS, pixels[::2], pixels[1::2], strict=True)
        if not np.array_equal(whole[: len(top)], top)
    ]
    # libjpeg-turbo 2 and 3 smooth the blocks of unfinished progressive images differently; simplejpeg's and Pillow's
    # agree.
    return found if np.array_equal(pixels[0], pixels[4]) else [*found, "simplejpeg and Pillow give other pixels"]
