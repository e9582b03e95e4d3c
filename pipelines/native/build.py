"""Build the native library with the machine's C compiler: `python -m penstock.pipelines.native.build`.

It needs no Python headers, so one build serves every version of Python.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
LIBRARY = SOURCES / "libpenstock.so"
# Doubles are computed as in numpy: without fused multiply-add.
_ARITHMETIC = "-ffp-contract=off"
FLAGS = ("-std=c11", "-O3", _ARITHMETIC, "-g1", "-fPIC", "-shared", "-fvisibility=hidden", "-D_GNU_SOURCE")
_WARNINGS = ("-Wall", "-Wextra")
_COMPILERS = ("cc", "gcc", "clang")
WITHOUT = "the native library was not built: images are decoded by the slower path, with the same pixels"


class BuildError(RuntimeError):
    """The library could not be built; the text is one line, followed by the compiler's messages."""


def compiler() -> list[str]:
    """Return the command of the C compiler: $CC, or the first that is installed. Raises BuildError."""
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [[name] for name in _COMPILERS]:
        if shutil.which(command[0]):
            return command
    raise BuildError(f"no C compiler: {' '.join(named) or ', '.join(_COMPILERS)}")


def build(library: Path = LIBRARY, flags: Sequence[str] = ()) -> Path:
    """Compile all C files of this folder to the shared library `library`. Raises BuildError."""
    sources = sorted(str(path) for path in SOURCES.glob("*.c"))
    unfinished = library.with_name(f"{library.name}.{os.getpid()}.tmp")
    try:
        command = [*compiler(), *FLAGS, *_WARNINGS, *flags, *sources, "-lm", "-o", str(unfinished)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise BuildError(f"{command[0]} failed with exit code {run.returncode}\n{run.stderr}")
        os.replace(unfinished, library)
    except OSError as error:
        raise BuildError(str(error)) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return library


def main(library: Path = LIBRARY) -> None:
    """Build the library; if this fails, print one line: then images are decoded on the Python path."""
    try:
        build(library)
    except BuildError as error:
        why, _, words = str(error).partition("\n")
        print(f"{WITHOUT} ({why})", file=sys.stderr)
        print(words, end="", file=sys.stderr)


if __name__ == "__main__":
    main()
