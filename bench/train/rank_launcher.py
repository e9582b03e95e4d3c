"""Runs torchrun and exits like its ranks: with the exit code of one that failed, or 128 + the number of a signal.

Use it as `python -m penstock.bench.train.rank_launcher` with torchrun's options. torchrun itself always exits with 1,
so that a batch system cannot distinguish a run that saved itself from one with bad data.
"""

from __future__ import annotations

import sys

_NOT_THE_CAUSE = (1, 5)  # Python's exit code for exceptions, and E-WORKER's: often from a rank that lost its peers


def main() -> None:
    """Run torchrun with the arguments of this process; exit with the code of its ranks."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.main()
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in sorted(error.failures.items())}
        print(
            "penstock: " + ", ".join(f"rank {rank} ended with {code}" for rank, code in codes.items()), file=sys.stderr
        )
        sys.exit(exit_code(list(codes.values())))
    except SignalException as error:
        sys.exit(128 + error.sigval)


def exit_code(codes: list[int]) -> int:
    """Choose one exit code for all ranks: the first that shows the cause, else the highest; -N means signal N."""
    shown = [128 - code if code < 0 else code for code in codes]
    return next((code for code in shown if code not in _NOT_THE_CAUSE), max(shown))


if __name__ == "__main__":
    main()
