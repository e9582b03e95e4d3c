"""When a failed request is repeated: deadlines, growing pauses, and pauses that a server asks for."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime

from penstock.loaders.data.requests.time_limits import LAST_STALL_S, LONG_STALL_S, STALL_S
from penstock.pipelines.errors import LoaderError

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 20.0
_FEW = 4  # times that a request is repeated after an error that may be lasting
ENDING = threading.Event()  # set when the interpreter ends: it waits for the threads that repeat requests


class Deadline:
    """A limit, from now on, for all attempts of a read together; an attempt that receives data may exceed it.

    stop: when it is set, no other attempt is made.
    """

    def __init__(self, retry_s: float, stop: threading.Event = ENDING) -> None:
        self.retry_s, self._stop = retry_s, stop
        self._end = time.monotonic() + retry_s

    @property
    def spent_s(self) -> float:
        """Seconds since its beginning."""
        return self.retry_s - (self._end - time.monotonic())

    def allows_attempt(self, pause_s: float = 0.0) -> bool:
        """Return whether an attempt that begins `pause_s` from now can end in time."""
        left_s = self._end - time.monotonic() - pause_s
        return left_s > 0 and left_s >= min(LAST_STALL_S, self.retry_s / 2) and not self._stop.is_set()

    def wait(self, pause_s: float) -> bool:
        """Wait between two attempts; return whether the next one is still wanted."""
        return not self._stop.wait(pause_s)

    def stall_s(self, number: int) -> float:
        """Return the limit in seconds for attempt `number`, counted from 0, to receive nothing."""
        left_s = self._end - time.monotonic()
        limits_s = (LONG_STALL_S, STALL_S) if number else (STALL_S,)
        return next((limit_s for limit_s in limits_s if limit_s <= left_s), LAST_STALL_S)


class Pauses:
    """Chooses the pauses between attempts, for all requests of a store; shared by threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._not_before = dict[str, float]()  # host -> time of the monotonic clock that its server asked for

    def after(
        self, number: int, deadline: Deadline, host: str, ask: Callable[[], float | None] | None, *, lasts: bool
    ) -> float | None:
        """Return the seconds to wait after attempt `number` failed; None if no other one should be made.

        ask: for a server with too many requests, returns the pause that it asks for. lasts: whether repetitions may
        help for as long as the deadline allows. Raises LoaderError E-READ if the server asks for more than that.
        """
        if number >= _FEW and not lasts:
            return None
        # Full jitter, so that many clients do not retry at once.
        pause_s = random.uniform(0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**number))  # noqa: S311
        asked_s = 0.0 if ask is None else self._asked_s(host, ask)
        if asked_s and not deadline.allows_attempt(asked_s):
            cause = f"the server has too many requests, and asks to wait {asked_s:,.0f} s"
            raise LoaderError("E-READ", cause, fix="wait, send fewer requests (requests=), or pass a longer retry_s=")
        pause_s = max(pause_s, asked_s * random.uniform(1, 1.1))  # noqa: S311
        return pause_s if deadline.allows_attempt(pause_s) else None

    def _asked_s(self, host: str, ask: Callable[[], float | None]) -> float:
        """Return the seconds that the server of `host` asks to wait; 0 if it does not."""
        now = time.monotonic()
        if self._not_before.get(host, 0) <= now and self._lock.acquire(blocking=False):  # one thread asks
            try:
                self._not_before[host] = now + (ask() or 0.0)
            finally:
                self._lock.release()
        return max(0.0, self._not_before.get(host, 0) - now)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds in a Retry-After header, from seconds or a date of the server's clock; None without one."""
    text = headers.get("retry-after", "")
    try:
        if text.strip().isdigit():
            return float(text)
        until = parsedate_to_datetime(text)
        sent = headers.get("date")
        now_s = parsedate_to_datetime(sent).timestamp() if sent else time.time()
        return max(0.0, until.timestamp() - now_s)
    except (ValueError, TypeError, OverflowError):
        return None
