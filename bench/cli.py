"""Runs the command `penstock`: registers its subcommands, and turns errors into one line and an exit code."""

from __future__ import annotations

import errno
import os
import sys

# Before torch is imported: its OpenMP threads spin while they wait, which starves loader workers that share their
# processors (training on two busy cores: 93 to 119 images/s with this, 27 to 79 without).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import typer

from penstock.bench.exits.stop_signals import SignalExit, exit_on_signals, ignore_more_signals, signal_before
from penstock.pipelines.errors import CANNOT_ALLOCATE, EXIT_USAGE, LoaderError

_NO_THREAD = "can't start new thread"  # Python's words when a thread's stack finds no memory, or threads are too many

app = typer.Typer(
    name="penstock",
    help="Feed GPUs with images: measure what your data can be loaded at, what limits it, and which import to change.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 fine, 2 usage, 3 bad data, 4 bad or stale cache, 5 worker lost, 6 timeout, "
    "7 resources missing, 130 and 143 stopped by a signal.",
)


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
        synth,
    )
    from penstock.bench.commands import train as training

    for module in (bench, compare, doctor, index, report, training, ablate, synth, iterate, parity, selftest):
        app.command()(getattr(module, module.__name__.rpartition(".")[2]))
    app.add_typer(cache.cache, name="cache")


def main() -> None:
    """Run the command line and exit with a code of the error contract; errors are one line on standard error."""
    exit_on_signals()
    _register()
    try:
        app()
    except LoaderError as error:
        _fail(error.line(), error.exit_code)
    except ValueError as error:
        _fail(f"penstock: {error}", EXIT_USAGE)
    except SignalExit as error:
        _exit_stopped(error)
    except RuntimeError as error:
        stop = signal_before(error)
        if stop is not None:
            _exit_stopped(stop)
        if not any(words in str(error) for words in (CANNOT_ALLOCATE, _NO_THREAD)):
            raise
        full = LoaderError("E-MEM", str(error).partition("\n")[0])
        _fail(full.line(), full.exit_code)
    except MemoryError as error:
        short = LoaderError("E-MEM", f"out of memory ({str(error) or 'no details'})")
        _fail(short.line(), short.exit_code)
    except BrokenPipeError:
        # Whoever reads our output has left; Python would complain once more while closing the stream at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + 13)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            full = LoaderError("E-NOSPC", error.strerror or str(error), path=error.filename)
            _fail(full.line(), full.exit_code)
        _fail(f"penstock: {error}", EXIT_USAGE)
    finally:
        ignore_more_signals()  # the command is over; what Python does at its exit would print a traceback


def _exit_stopped(by: SignalExit) -> None:
    _fail(f"penstock: stopped by {by.name}" + (f"; {by.note}" if by.note else ""), int(str(by.code)))


def _fail(line: str, code: int) -> None:
    print(line, file=sys.stderr, flush=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
