"""HostLead bounds how many steps the host queues that the device has not done."""

from __future__ import annotations

from collections import deque
from typing import Any

from penstock.loaders.feed.copies import CopyEngine

MOST_STEPS = 4  # a pause of the host shorter than these steps leaves no gap on the device


class HostLead:
    """Block the host where it is more than MOST_STEPS steps ahead of the device.

    A step that is captured in a CUDA graph is one launch. Without a bound the host queues tens of steps, and the device
    holds a batch for each of them.
    """

    def __init__(self, copies: CopyEngine) -> None:
        self._copies = copies
        self._ends: deque[Any] = deque()  # of the steps that may not be done

    def wait(self) -> None:
        """Note the end of the latest step, and wait for that of an earlier one: call it when a batch is asked for."""
        self._ends.append(self._copies.mark_consumer())
        if len(self._ends) > MOST_STEPS:
            self._copies.wait_on_host(self._ends.popleft())
