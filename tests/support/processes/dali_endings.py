"""Programs that end with a loader open: forks of this script that run to its end, as a program of a user's would.

`python dali_endings.py FOLDER COUNT LOG` prints a JSON list of [ending, exit code, whether it ended in time, what was
written to stderr].
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path

from processes import in_time

from penstock.loaders import create_loader
from penstock.pipelines import imagenet_train

HUNG_S = 100  # of a child, after which it says where it stands
CASES = tuple((ending, workers) for workers in (0, 2) for ending in ("leaves", "raises", "interrupted"))


def act(ending: str, workers: int, ready: int) -> None:
    """Serve three batches, say so, and come to an end."""
    global loader  # still open when the interpreter ends
    faulthandler.dump_traceback_later(HUNG_S, exit=True)  # to standard error, which the parent prints
    loader = create_loader(sys.argv[1], backend="dali", workers=workers, batch_size=8, pipeline=imagenet_train(64))
    batches = itertools.chain.from_iterable(loader for _ in itertools.count())
    for _ in itertools.islice(batches, 3):
        pass
    os.write(ready, b"1")
    if ending == "raises":
        raise ValueError("of the user's own")
    if ending == "interrupted":
        for _ in batches:
            pass


def observed(ending: str, child: int, ready: int, told: Path) -> list[object]:
    """How a child ended."""
    os.read(ready, 1)
    started = time.monotonic()
    if ending == "interrupted":
        time.sleep(0.05)
        os.kill(child, signal.SIGINT)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return [ending, code, in_time(started, 10), told.read_text("utf-8")]


def fork(told: Path) -> tuple[int, int]:
    """(process id, where it says that it is ready) of a child, 0 in the child itself."""
    ready, says = os.pipe()
    child = os.fork()
    if child:
        os.close(says)
        return child, ready
    os.dup2(os.open(told, os.O_CREAT | os.O_WRONLY), 2)
    return 0, says


if __name__ == "__main__":
    seen, mine = [], None
    for number in range(int(sys.argv[2])):
        ending, workers = CASES[number % len(CASES)]
        told = Path(f"{sys.argv[3]}.{number}")
        child, pipe = fork(told)
        if not child:
            mine = (ending, workers, pipe)
            break
        seen.append(observed(ending, child, pipe, told))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background is born without
    if mine is None:
        print(json.dumps(seen))
    else:
        act(*mine)
