"""Shows a run while it measures: a table on a terminal, one line per finished measurement elsewhere."""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.bench.record.bench_record import KIND_NAMES
from penstock.bench.report.terminal import plain_console
from penstock.bench.report.text import rate_text, shown, spread_text

_SEARCH = "search"  # kind of a short measurement of the search
_SILENCE_S = 4.0


class LiveTable:
    """Show the progress and results of measurements on standard error; use it in a `with` block.

    On a terminal the table disappears when all is measured; it stays if the run was aborted. Elsewhere, after
    `silence` seconds without output, a line names the current measurement. left: returns the remaining seconds,
    infinity for no limit.
    """

    def __init__(
        self, left: Callable[[], float] = lambda: math.inf, console: Console | None = None, silence: float = _SILENCE_S
    ) -> None:
        self._console, self._left, self._silence = console or plain_console(stderr=True), left, silence
        self._now = "starting"
        self._rows: dict[tuple[str, str], tuple[str, ...]] = {}
        self._printed, self._ended = threading.Event(), threading.Event()
        self._talker = threading.Thread(target=self._break_silence, name="penstock-live", daemon=True)
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=2, transient=True)

    def begin(self, done: int, total: int, what: str) -> None:
        """Show that `what` is measured next, after `done` of `total`; total is 0 if unknown."""
        self._now = f"{shown(what)} ({done + 1} of {total})" if total else str(shown(what))

    def measured(self, kind: str, name: str, rates: Sequence[float]) -> None:
        """Show images/s of each round of a measurement."""
        self._rows.pop((kind, name), None)
        what, measured, rate, spread = self._rows[kind, name] = _cells(kind, name, rates)
        if not self._console.is_terminal:
            self.print("  ".join([what, measured, f"{rate} images/s", spread, self._time()]).rstrip())

    def print(self, line: str) -> None:
        """Print a line above the table."""
        self._printed.set()
        self._console.print(Text(str(shown(line))), soft_wrap=True)

    def _break_silence(self) -> None:
        while not self._ended.is_set():
            if self._printed.wait(self._silence):
                self._printed.clear()
            elif not self._ended.is_set():
                self._console.print(Text(f"... {self._now}  {self._time()}".rstrip()), soft_wrap=True)

    def _render(self) -> Group:
        """Return the status above the measurements, latest first: rich cuts off rows that do not fit the screen."""
        loader = [f"loader {cells[2]} images/s" for (kind, _), cells in self._rows.items() if kind == "loader"]
        status = ", ".join(filter(None, [self._time(), *loader, self._now]))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
        table.add_column("what", no_wrap=True)
        table.add_column("measured", overflow="fold", ratio=1)
        table.add_column("images/s", justify="right", no_wrap=True)
        table.add_column("spread", justify="right", no_wrap=True)
        for cells in reversed(self._rows.values()):
            table.add_row(*map(Text, cells))
        return Group(Text(status, style="bold", no_wrap=True, overflow="ellipsis"), table)

    def _time(self) -> str:
        left = self._left()
        return "" if math.isinf(left) else f"{max(0.0, left):.0f} s left"

    def __enter__(self) -> LiveTable:
        if self._console.is_terminal:
            self._live.start()
        else:
            self._talker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._rows.clear()  # rich draws all of them at the end, and could not remove rows beyond the screen
        self._live.transient = kind is None
        self._live.stop()
        self._ended.set()
        self._printed.set()
        if self._talker.is_alive():
            self._talker.join()  # it has been woken and prints one line at most


def _cells(kind: str, name: str, rates: Sequence[float]) -> tuple[str, str, str, str]:
    rate = statistics.median(rates) if rates else 0.0
    spread = spread_text(rates) if len(rates) > 1 else ""
    return KIND_NAMES.get(kind, _SEARCH), str(shown(name)), rate_text(rate), spread
