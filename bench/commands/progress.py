"""Shows a progress bar on standard error if that is a terminal; cache builds and folder scans have their own."""

from __future__ import annotations

from types import TracebackType


class ProgressBar:
    """Show how far a command is; use it in a `with` block, at the end of which the bar disappears."""

    def __init__(self, what: str, total: int | None = None) -> None:
        from rich.progress import Progress, TextColumn

        from penstock.bench.report.console import plain_console

        console = plain_console(stderr=True)
        columns = TextColumn("{task.description}", markup=False), *Progress.get_default_columns()[1:]
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task(what, total=total)

    def show(self, done: int, total: int, what: str | None = None) -> None:
        """Set how much is done of how much, and what is being done if that has changed."""
        self._progress.update(self._task, completed=done, total=total, description=what)

    def advance(self, more: int = 1) -> None:
        """Count `more` as done."""
        self._progress.advance(self._task, more)

    def print(self, line: str) -> None:
        """Print a line on standard error, above the bar."""
        self._progress.console.print(line)

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
