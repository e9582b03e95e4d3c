"""Measures remote storage for the doctor, with the ceilings of the benchmark."""

from __future__ import annotations

from penstock.bench.ceilings.store import StoreCeiling
from penstock.bench.checks.finding import Finding
from penstock.loaders.sources.contract import Source

_SECONDS = 1.0
_SLOW_REQUEST_S = 0.2


def remote_speed(name: str, source: Source, batch_size: int) -> Finding:
    """Measure how long a request takes, and what as many as a loader makes bring; warn where more would bring more."""
    store, title = StoreCeiling(source, batch_size, 0), f"{name}: network"
    gains = store.gains_by_more(_SECONDS)
    time = store.time()
    if time is None:
        return Finding(title, "warn", "nothing of the sample can be fetched", "see the next line")
    rate = time.requests / time.request_s * time.images_per_request
    text = (
        f"{1e3 * time.first_byte_s:,.0f} ms to the first byte; {rate:,.0f} images/s and {time.bytes_per_s / 1e6:,.1f} "
        f"MB/s with {time.requests} requests at a time"
    )
    if time.more_bytes_per_s:
        text += f", {time.more_bytes_per_s / 1e6:,.1f} MB/s with {time.more_requests}"
    if gains:
        return Finding(title, "warn", text, f"requests={time.more_requests}, or keep a copy: local_cache=FOLDER")
    if time.first_byte_s > _SLOW_REQUEST_S:
        return Finding(title, "warn", text, "raise requests= and bytes_ahead=, or keep a copy: local_cache=FOLDER")
    return Finding(title, "ok", text)
