"""Send Ctrl-C where Python may run signal handlers: after a call, and where a function or loop begins."""

from __future__ import annotations

import dis
import functools
import random
import signal
import sys
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")

_WHERE = (
    "/loaders/",
    "/pipelines/",
    "/threading.py",
    "/queue.py",
    "/multiprocessing/",
    "/torch/utils/data/",
    "/filelock/",
)
# Python drops exceptions that are raised in finalizers.
_SPARED_FILES, _SPARED = ("/weakref.py", "/multiprocessing/util.py"), ("__del__",)


class Interruption:
    """Strikes once, at check point number `at` of the code that runs under it; -1 for never.

    within: qualified name of the function that contains the points, also in its callees; by default anywhere.

    Attributes:
        places: instruction -> the numbers of the check points at which it was reached.
        points: number of check points.
        struck: function and line of the strike and its callers.
        struck_s: time of the strike (monotonic).
    """

    def __init__(self, at: int = -1, within: str = "") -> None:
        self._at, self._within, self.points, self.struck, self.struck_s = at, within, 0, "", 0.0
        self.places: dict[tuple[CodeType, int], list[int]] = {}

    def run(self, action: Callable[[], Result]) -> Result:
        """Return the result of `action`, which may raise KeyboardInterrupt in its middle."""
        before, handler = sys.gettrace(), signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.settrace(self._begin)
        try:
            return action()
        finally:
            sys.settrace(before)
            signal.signal(signal.SIGINT, handler)

    def draw(self, number: int) -> list[int]:
        """Return check points of `number` places at equal distances, different ones each time; of all if too few."""
        visits, dice = list(self.places.values()), random.SystemRandom()
        first, number = dice.random(), min(number, len(visits))
        return [dice.choice(visits[int(len(visits) * (k + first) / number)]) for k in range(number)]

    def _begin(self, frame: FrameType, event: str, argument: Any) -> Any:
        points = _check_points(frame.f_code)
        if not points:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False

        def follow(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "opcode" and frame.f_lasti in points and not self.struck and not _is_spared(frame):
                if self._is_within(frame):
                    self.points += 1
                    self.places.setdefault((frame.f_code, frame.f_lasti), []).append(self.points)
                if self.points == self._at:
                    self.struck, self.struck_s = _stack(frame), time.monotonic()
                    sys.settrace(None)
                    signal.raise_signal(signal.SIGINT)  # raises unless the signal is deferred
            return follow

        return follow

    def _is_within(self, frame: FrameType | None) -> bool:
        while self._within and frame is not None and getattr(frame.f_code, "co_qualname", "") != self._within:
            frame = frame.f_back
        return frame is not None


@functools.cache
def _check_points(code: CodeType) -> set[int]:
    """Return the offsets of the instructions before which a handler may run."""
    if "/tests/" in code.co_filename or not any(part in code.co_filename for part in _WHERE):
        return set()
    found: set[int] = set()
    table = getattr(dis, "_parse_exception_table")(code)  # noqa: B009

    def handler(offset: int) -> int | None:
        return next((entry.target for entry in reversed(table) if entry.start <= offset < entry.end), None)

    before: dis.Instruction | None = None
    for step in dis.get_instructions(code):
        # An exception after the last call in a try or with is raised within it.
        if before and before.opname in ("CALL", "CALL_FUNCTION_EX", "RESUME"):
            found |= {step.offset} if handler(before.offset) == handler(step.offset) else set()
        if "BACKWARD" in step.opname:
            found.add(step.argval)
        before = step
    return found


def _is_spared(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name in _SPARED or frame.f_code.co_filename.endswith(_SPARED_FILES):
            return True
        frame = frame.f_back
    return False


def _stack(frame: FrameType | None) -> str:
    lines = []
    while frame is not None and len(lines) < 5:
        lines.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(lines)
