"""The JSON document of a record of `penstock bench` that uses all fields."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.bench.record.bench_record import BenchRecord

SIMPLEJPEG = "decode + resize, simplejpeg, one thread"
_RATES = {
    ("ceiling", SIMPLEJPEG): 970.0,
    ("ceiling", "decode alone, one thread"): 1200.0,
    ("ceiling", "resize alone, one thread"): 4800.0,
    ("ceiling", "read, one thread, from the page cache"): 38_000.0,
    ("ceiling", "read, one thread, from storage"): 2100.0,
    ("ceiling", "normalise"): 14_000.0,
    ("loader", "penstock, torch backend"): 1779.0,
    ("other", "penstock, hdf5 backend"): 2411.0,
    ("baseline", "torch DataLoader + Pillow"): 714.0,
    ("model", "resnet18 on a resident batch"): 81.0,
    ("both", "penstock + resnet18"): 64.0,
}


def measured(kind: str, name: str, rate: float) -> dict[str, Any]:
    """A measurement with two rounds."""
    windows = [[[0.4, rate], [0.5, 0.9 * rate]], [[0.4, 1.1 * rate]]]
    return {
        "name": name,
        "kind": kind,
        "images_per_s": rate,
        "low": 0.95 * rate,
        "high": 1.05 * rate,
        "rounds": [0.95 * rate, 1.05 * rate],
        "wait_share": 0.25 if kind == "both" else None,
        "note": "2 workers" if kind == "baseline" else "",
        "resources": {"cpu_cores": 1.5, "cpu_share": 0.75, "memory_mb": 812.0} if kind == "loader" else None,
        "over_time": windows if kind in ("loader", "other", "baseline", "both") else [],
    }


def document() -> dict[str, Any]:
    """A new document, which may be modified."""
    return {
        "settings": {"backend": "torch", "batch_size": 64, "model": "resnet18", "seconds": 4.0, "rounds": 2},
        "workers": 2,
        "decoder": "simplejpeg",
        "data": {"summary": "200 images, 4 classes", "images": 200, "bytes_an_image": 110_000, "fingerprint": "f00d"},
        "environment": {"cpus": 2, "cpu": "some CPU", "gpu": None, "packages": {"torch": "2.13.0"}},
        "loader": {"backend": "torch", "workers": 2, "prefetch": 3},
        "measured": [measured(kind, name, rate) for (kind, name), rate in _RATES.items()],
        "notes": ["a peer was left out: it has no files"],
        "applied": [
            {"what": "--workers 4", "quantity": "loader", "predicted": 3000.0, "before": 1700.0, "measured": 2720.0},
            {"what": "more memory", "quantity": "both", "predicted": None, "failed": "there is none"},
        ],
        "candidates": [
            _tried("torch of the files", images_per_s=1700.0, cpu_cores=1.9, memory_mb=800.0),
            _tried("hdf5 of the cache", images_per_s=2400.0, cpu_cores=1.8, memory_mb=850.0),
            _tried("dali of the files", why="DALI is not installed"),
        ],
        "verdict": {
            "limit": "model",
            "sentence": "The model limits: 81 images/s.",
            "advice": [{"what": "--workers 4", "images_per_s": 3558.0, "why": "there are processors left"}],
            "call": "loader = create_loader(\n    'DATA',\n)",
        },
    }


def restored(made: dict[str, Any]) -> BenchRecord:
    """The record of the document `made`, which may contain values that JSON text cannot."""
    return msgspec.convert(made, BenchRecord)


def _tried(name: str, **more: Any) -> dict[str, Any]:
    backend, _, data = name.partition(" of the ")
    return {"name": name, "backend": backend, "decoder": "simplejpeg", "cached": data == "cache", "options": {}, **more}
