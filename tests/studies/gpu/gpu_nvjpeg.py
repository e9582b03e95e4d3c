"""Measures nvJPEG through torchvision, whole photos: `gpu_nvjpeg.py OUT.json DATA DEVICE`."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
import torchvision
from gpu_notes import Notes
from gpu_timing import synchronize
from torchvision.io import ImageReadMode, decode_jpeg

MOST_IMAGES, ROUNDS = 256, 4


def decode(coded: list[torch.Tensor], device: torch.device) -> list[torch.Tensor | None]:
    """Decode photos; None for a refused one, which fails the whole batch."""
    try:
        return list(decode_jpeg(coded, mode=ImageReadMode.RGB, device=device))
    except RuntimeError:
        return [_decode_one(each, device) for each in coded]


def _decode_one(coded: torch.Tensor, device: torch.device) -> torch.Tensor | None:
    try:
        made: torch.Tensor = decode_jpeg(coded, mode=ImageReadMode.RGB, device=device)
    except RuntimeError:
        return None
    return made


def distances(files: list[bytes], made: list[torch.Tensor | None]) -> dict[str, dict[str, Any]]:
    """Return for each chroma sampling the distance of pixels from libjpeg's, in levels of 255."""
    found: dict[str, list[tuple[float, float, int]]] = {}
    for coded, image in zip(files, made, strict=True):
        if image is None:
            continue
        try:
            expected = simplejpeg.decode_jpeg(coded, "RGB").astype(np.int16)
        except ValueError:
            continue
        apart = np.abs(image.permute(1, 2, 0).cpu().numpy().astype(np.int16) - expected)
        sampling = simplejpeg.decode_jpeg_header(coded)[3]
        numbers = float(apart.mean()), float(np.quantile(apart, 0.999)), int(apart.max())
        found.setdefault(sampling, []).append(numbers)
    return {
        sampling: {
            "images": len(rows),
            "mean": round(statistics.fmean(row[0] for row in rows), 3),
            "highest p99.9": max(row[1] for row in rows),
            "highest": max(row[2] for row in rows),
        }
        for sampling, rows in found.items()
    }


def rate(coded: list[torch.Tensor], at_a_time: int, device: torch.device) -> float:
    """Return images per second, the median of ROUNDS rounds over all photos except the first."""
    rates = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for at in range(0, len(coded), at_a_time):
            decode_jpeg(coded[at : at + at_a_time], mode=ImageReadMode.RGB, device=device)
        synchronize(device)
        rates.append(len(coded) / (time.perf_counter() - start))
    return round(statistics.median(rates[1:]), 1)


def main() -> None:
    out, data, device = sys.argv[1], sys.argv[2], torch.device(sys.argv[3])
    notes = Notes(out)
    paths = [path for path in sorted(Path(data).rglob("*")) if path.suffix.lower() in (".jpg", ".jpeg")][:MOST_IMAGES]
    files = [path.read_bytes() for path in paths]
    coded = [torch.frombuffer(bytearray(each), dtype=torch.uint8) for each in files]
    made = decode(coded, device)
    refused = sum(each is None for each in made)
    notes.note("torchvision", {"version": torchvision.__version__, "images": len(files), "refused": refused})
    notes.note("distance from libjpeg by sampling", distances(files, made))
    good = [each for each, image in zip(coded, made, strict=True) if image is not None]
    for at_a_time in (64, len(good)):
        notes.note(f"images/s, {at_a_time} at a time", rate(good, at_a_time, device))


if __name__ == "__main__":
    main()
