"""A fork of this process that runs a function, as a user's program may fork after it has used a loader."""

from __future__ import annotations

import json
import os
import select
import signal
import traceback
from collections.abc import Callable
from typing import Any

_LONGEST_S = 240.0


class ForkedChild:
    """Runs `function` with the argument `wait` (blocks until the parent calls go_on()); `group`: as a group leader."""

    def __init__(self, function: Callable[[Callable[[], None]], Any], *, group: bool = False) -> None:
        self._answers, told = os.pipe()
        held, self._release = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            if group:
                os.setsid()
            os.close(self._release)
            try:
                answer = {"value": function(lambda: _wait_for_parent(told, held))}
            except BaseException:
                answer = {"error": traceback.format_exc()}
            os.write(told, (json.dumps(answer) + "\n").encode())
            os._exit(0)
        os.close(told)
        os.close(held)

    def waits(self) -> None:
        """Return once the child waits for this process."""
        line = self._line()
        assert line == "waits", line

    def go_on(self) -> None:
        os.write(self._release, b"1")

    def result(self) -> Any:
        """Return the result of the function."""
        answer = json.loads(self._line())
        os.waitpid(self.pid, 0)
        os.close(self._answers)
        os.close(self._release)
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def kill_group(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def _line(self) -> str:
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([self._answers], [], [], _LONGEST_S)[0]:
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError("the child hangs")
            chunk = os.read(self._answers, 1)
            assert chunk, f"the child is gone: {line!r}"
            line += chunk
        return line.decode().strip()


def _wait_for_parent(told: int, held: int) -> None:
    os.write(told, b"waits\n")
    os.read(held, 1)
