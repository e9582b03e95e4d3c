"""Time limits of a request: a slow line is slow, a server that sends nearly nothing is broken."""

from __future__ import annotations

# Limits in seconds of an attempt that receives nothing: of the first one, of others, and near the deadline.
STALL_S, LONG_STALL_S, LAST_STALL_S = 20.0, 40.0, 5.0
PAGE_BYTES = 1 << 20  # of a listing
_LEAST_BYTES_PER_S = 16 << 10
_SMALL_BYTES, _STEP = 512 << 10, 8  # sizes of requests that have the same limit: each limit needs its own client


def total_s(stall_s: float, num_bytes: int) -> float:
    """Return the limit in seconds of a request for `num_bytes`, even if it keeps receiving some data.

    It allows `stall_s` to begin, and then, on average, a speed below that of any line with many concurrent requests.
    """
    size = _SMALL_BYTES
    while size < num_bytes:
        size *= _STEP
    return stall_s + size / _LEAST_BYTES_PER_S
