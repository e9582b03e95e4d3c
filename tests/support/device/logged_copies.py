"""A CopyEngine over host memory that records its calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class LoggedCopies:
    """Refuses events and hand-overs on the wrong stream.

    Attributes:
        log: the calls.
        locked: results of pinned().
        is_inside: whether work is currently queued on the side stream.
    """

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.locked: list[torch.Tensor] = []
        self._marks, self.is_inside = 0, False

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        self.locked.append(torch.zeros_like(like))
        return self.locked[-1]

    @contextmanager
    def side(self) -> Iterator[None]:
        assert not self.is_inside
        self.is_inside = True
        self.log.append("side")
        yield
        self.log.append("back")
        self.is_inside = False

    def mark(self) -> int:
        assert self.is_inside, "an event of the consumer's stream"
        self.log.append("mark")
        self._marks += 1
        return self._marks

    def mark_consumer(self) -> Any:
        assert not self.is_inside, "an event of the side stream"

    def wait_on_host(self, event: Any) -> None:
        assert not self.is_inside
        self.log.append("wait")

    def hand_over(self, event: int, tensors: tuple[torch.Tensor, ...]) -> None:
        assert not self.is_inside
        self.log.append((f"hand over after mark {event}", [tensor.tolist() for tensor in tensors]))
