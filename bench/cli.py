"""The command `penstock`: registers its subcommands and turns errors into one line and an exit code."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

# Before torch is imported: its OpenMP threads spin while they wait, which starves loader workers that share their
# processors (training on two busy cores: 93 to 119 images/s with this, 27 to 79 without).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import typer

from penstock.bench.train.stop_signals import SignalExit, exit_on_signals, ignore_more_signals, signal_before

_NO_THREAD = "can't start new thread"  # Python's message without memory for a thread's stack, or at the thread limit

app = typer.Typer(
    name="penstock",
    help="Feed GPUs with images: measure how fast your data loads, what limits it, and which import to change.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 fine, 2 usage, 3 bad data, 4 bad or stale cache, 5 worker lost, 6 timeout, "
    "7 resources missing, 130 and 143 stopped by a signal.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"penstock-loader {_version()}")
        raise typer.Exit


def _version() -> str:
    try:
        return version("penstock-loader")
    except PackageNotFoundError:
        return "(source tree, not installed)"


@app.callback()
def _say_version(
    wanted: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options of `penstock` itself; its help is the app's."""


def _register() -> None:
    from penstock.bench.commands import (
        ablate,
        bench,
        cache,
        compare,
        doctor,
        index,
        iterate,
        parity,
        report,
        selftest,
        show,
        stats,
        synth,
    )
    from penstock.bench.commands import train as training
    from penstock.bench.commands.shared_options import NamingCommand

    modules = (bench, compare, doctor, index, stats, show, report, training, ablate, synth, iterate, parity, selftest)
    for module in modules:
        app.command(cls=NamingCommand)(getattr(module, module.__name__.rpartition(".")[2]))
    app.add_typer(cache.cache, name="cache")


def main() -> None:
    """Run the command line and exit with a code of the error contract; errors and warnings are one line each.

    They go to standard error.
    """
    warnings.formatwarning = _format_warning
    exit_on_signals()
    _register()
    try:
        app()
    except SignalExit as error:
        _exit_stopped(error)
    except BrokenPipeError:
        # The reader of our output has closed the pipe; Python would report it again when it closes the stream at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + 13)
    except Exception as error:
        stop = signal_before(error)
        if stop is not None:
            _exit_stopped(stop)
        _explain(error)
        raise
    finally:
        ignore_more_signals()  # the command is over; a signal during Python's exit would print a traceback


def _format_warning(message: Warning | str, *_: object, **__: object) -> str:
    """Return a warning as one line, without the place in a library's code that Python would name."""
    return f"penstock: warning: {' '.join(str(message).split())}\n"


def _explain(error: Exception) -> None:
    """Exit with one line if a user can cause this error; return otherwise."""
    from penstock.pipelines.errors import CANNOT_ALLOCATE, EXIT_USAGE, LoaderError  # the package imports torch

    if isinstance(error, LoaderError):
        pass
    elif isinstance(error, MemoryError):
        error = LoaderError("E-MEM", f"out of memory ({str(error) or 'no details'})")
    elif isinstance(error, RuntimeError) and any(words in str(error) for words in (CANNOT_ALLOCATE, _NO_THREAD)):
        error = LoaderError("E-MEM", str(error).partition("\n")[0])
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        error = LoaderError("E-NOSPC", error.strerror or str(error), path=error.filename)
    if isinstance(error, LoaderError):
        _fail(error.line(), error.exit_code)
    if isinstance(error, (ValueError, OSError)):
        _fail(f"penstock: {error}", EXIT_USAGE)


def _exit_stopped(by: SignalExit) -> None:
    _fail(f"penstock: stopped by {by.name}" + (f"; {by.note}" if by.note else ""), int(str(by.code)))


def _fail(line: str, code: int) -> None:
    print(line, file=sys.stderr, flush=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
