"""Records of `penstock bench` made from a test's figures."""

from __future__ import annotations

from penstock.bench.record.bench_record import (
    COPY,
    DECODE,
    LOSSLESS_CACHE,
    READ_COLD,
    READ_MANY,
    REPLAYED,
    RESIZE,
    BenchRecord,
    Measured,
    Tried,
    bf16_name,
    fetch_name,
    replayed_model_name,
)
from penstock.bench.record.loader_time import StoreTime, Traffic, WorkerTime
from penstock.bench.record.resources import Resources
from penstock.bench.record.settings import BenchSettings


def record(
    *,
    workers: int = 2,
    dtype: str = "float32",
    usage: dict[str, Resources] | None = None,
    times: dict[str, WorkerTime] | None = None,
    store: StoreTime | None = None,
    **rates: float,
) -> BenchRecord:
    """A record of rates in images/s, named as in `names`; usage, times: of `loader` and `both`.

    arriving: images/s that came over the network.
    """
    arriving = rates.pop("arriving", 0.0)
    names = {
        "decode_alone": ("ceiling", DECODE),
        "resize": ("ceiling", RESIZE),
        "cold": ("ceiling", READ_COLD),
        "many": ("ceiling", READ_MANY),
        "fetch": ("ceiling", fetch_name(64)),
        "fetch_more": ("ceiling", fetch_name(256)),
        "bf16": ("ceiling", bf16_name("resnet18")),
        "copy": ("ceiling", COPY),
        "replayed": ("ceiling", REPLAYED),
        "replayed_model": ("ceiling", replayed_model_name("resnet18")),
        "cache": ("ceiling", LOSSLESS_CACHE),
        "turbojpeg": ("ceiling", "decode + resize, turbojpeg, one thread"),
        "loader": ("loader", "penstock, torch backend"),
        "model": ("model", "resnet18 on a resident batch"),
        "both": ("both", "penstock + resnet18"),
        "decode": ("ceiling", "decode + resize, simplejpeg, one thread"),
        "normalise": ("ceiling", "normalise"),
        "baseline": ("baseline", "torch DataLoader + Pillow"),
    }
    measured = []
    for key, rate in rates.items():
        kind, name = names[key]
        share = 0.25 if key == "both" else None
        resources = (usage or {}).get(key)
        rounds = [rate * 0.9, rate, rate * 1.2]
        workers_time = (times or {}).get(key)
        traffic = (
            Traffic(requests_per_s=arriving, bytes_per_s=100_000 * arriving) if key == "loader" and store else None
        )
        measured.append(
            Measured.of(
                name, kind, rounds, wait_share=share, resources=resources, workers=workers_time, traffic=traffic
            )
        )
    return BenchRecord(
        settings=BenchSettings(workers=workers, dtype=dtype),
        workers=workers,
        decoder="simplejpeg",
        data={"summary": "200 images", "images": 200, "fingerprint": "f", "bytes_an_image": 100_000},
        environment={"cpus": 2, "cpu": "some CPU", "gpu": None},
        loader={"backend": "torch", "workers": workers, "prefetch": 3},
        measured=tuple(measured),
        store=store,
    )


def of_cpu(cpu: float, **more: float) -> Resources:
    """The resources of a busy share of two processors."""
    return Resources(cpu_cores=2 * cpu, cpu_share=cpu, **more)  # type: ignore[arg-type]


def tried(name: str, rate: float | None, **options: int) -> Tried:
    """A tried candidate of the backend that begins the name."""
    backend = name.partition(" ")[0]
    return Tried(
        name=name,
        backend=backend,
        decoder="simplejpeg",
        cached=backend == "hdf5",
        options=options,  # type: ignore[arg-type]
        images_per_s=rate,
    )
