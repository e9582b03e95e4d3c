"""How many requests at once are best: as many as raise the throughput, and fewer for a busy server."""

from __future__ import annotations

import threading
import time

MOST_REQUESTS = 256
_STEP = 8  # a window without a busy answer adds an eighth of the first limit, less to a small limit
_GAIN = 0.4  # of a wider limit that must show in the throughput
_PATIENCE = 16  # windows until a wider limit that gained nothing is tried again


class Pace:
    """The number of concurrent requests allowed, learned from answers; shared by threads.

    The limit is judged in windows of as many answers as it allows. A busy answer halves it, at most once per round
    trip; each window without one adds some back. Beyond `requests` it grows only while the throughput does.

    Args:
        requests: the first limit.
        bytes_ahead: limit of the bytes of all concurrent requests together.
        most: the highest limit.

    Attributes:
        limit: number of concurrent requests allowed now.
        most: the highest limit.
    """

    def __init__(self, requests: int, bytes_ahead: int, most: int = MOST_REQUESTS) -> None:
        self.limit, self._first, self.most = requests, requests, max(requests, most)
        self._bytes_ahead, self._lock = bytes_ahead, threading.Lock()
        self._latency_s, self._mean_bytes = 0.0, 0.0
        self._busy_at = -1e9
        self._before, self._rate, self._wait = 0, 0.0, 0  # limit and bytes/s before the last growth; windows to wait
        self._begin(time.monotonic())

    def busy(self) -> None:
        """Halve the limit after a server refused a request or did not answer it, once per round trip."""
        with self._lock:
            now = time.monotonic()
            if now - self._busy_at >= max(self._latency_s, 0.1):
                self.limit, self._busy_at = max(1, self.limit // 2), now
                self._before, self._wait = 0, 0
                self._begin(now)

    def answered(self, latency_s: float, num_bytes: int) -> None:
        """Learn from a request that was answered after `latency_s` with `num_bytes`."""
        with self._lock:
            weight = 1 / 16 if self._latency_s else 1.0
            self._latency_s += weight * (latency_s - self._latency_s)
            self._mean_bytes += weight * (num_bytes - self._mean_bytes)
            self._answers += 1
            self._num_bytes += num_bytes
            self._waited_s += latency_s
            now = time.monotonic()
            if self._answers >= self.limit and now - self._begun >= latency_s:
                self._judge(now - self._begun)
                self._begin(now)

    def _begin(self, now: float) -> None:
        self._begun, self._answers, self._num_bytes, self._waited_s = now, 0, 0, 0.0

    def _judge(self, seconds: float) -> None:
        """Set the limit for the next window by the last one, which took `seconds`."""
        seconds = max(seconds, 1e-9)
        rate, step = self._num_bytes / seconds, max(1, self._first // _STEP)
        if self._waited_s < 0.75 * self.limit * seconds:  # fewer were under way than allowed: nothing is learned
            return
        if self.limit < self._first:
            self._set(min(self._first, self.limit + max(1, min(step, self.limit // 4))))
            return
        if self._before:
            grown = self.limit / self._before - 1
            if rate < self._rate * (1 + _GAIN * grown):
                self.limit, self._wait = self._before, _PATIENCE
            self._before = 0
        if self._wait:
            self._wait -= 1
            return
        self._before, self._rate = self.limit, rate
        self._set(min(self.most, self.limit + step))
        if self.limit == self._before:
            self._before = 0

    def _set(self, limit: int) -> None:
        """Set the limit, within the limit of bytes, which never makes it smaller."""
        of_bytes = int(self._bytes_ahead / self._mean_bytes) if self._mean_bytes else limit
        self.limit = max(self.limit, min(limit, of_bytes))
