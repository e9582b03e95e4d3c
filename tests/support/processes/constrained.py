"""Machines that lack something: each limit as a prefix of a command."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

SMALL_SHM_MIB = 8
FEW_FILES = 128
LIMIT_S = 600.0
_MEMORY_V1 = Path("/sys/fs/cgroup/memory")
_ROOT_V2 = Path("/sys/fs/cgroup")


class Limit(NamedTuple):
    """prefix: the command that runs another one under the limit; without: variables that are removed."""

    prefix: tuple[str, ...]
    without: tuple[str, ...] = ()


class Outcome(NamedTuple):
    """The end of a command; last_error: the last line on standard error."""

    code: int | None
    seconds: float
    output: str
    errors: str

    @property
    def last_error(self) -> str:
        return (self.errors.strip().splitlines() or [""])[-1]


def shell(script: str) -> tuple[str, ...]:
    """Return a prefix that runs `script` first."""
    return ("sh", "-c", f'{script} && exec "$@"', "sh")


def mounted(script: str) -> tuple[str, ...]:
    """Return a prefix that runs `script` first in a separate mount namespace."""
    return ("unshare", "-m", *shell(script))


def small_shm() -> Limit:
    """A /dev/shm of 8 MB; Docker's is 64."""
    return Limit(mounted(f"mount -t tmpfs -o size={SMALL_SHM_MIB}m tmpfs /dev/shm"))


def few_files() -> Limit:
    """128 open files, and no permission for more."""
    return Limit(shell(f"ulimit -n {FEW_FILES}"))


def one_cpu() -> Limit:
    """One processor by affinity."""
    return Limit(("taskset", "-c", str(min(os.sched_getaffinity(0)))))


def no_home() -> Limit:
    """As under `docker run --user 12345`: no HOME and no user folders."""
    return Limit((), ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"))


def read_only_root(writable: Path) -> Limit:
    """As under `docker run --read-only --tmpfs /tmp`: only `writable` can be written, and TMPDIR must name it."""
    return Limit(mounted(f'mount --bind "{writable}" "{writable}" && mount -o remount,ro,bind / && cd /'))


@contextlib.contextmanager
def memory_cap(mib: int) -> Iterator[Limit | None]:
    """Yield a control group (version 1 or 2) of `mib` MiB; None if none can be created."""
    old = _MEMORY_V1.is_dir()
    group = (_MEMORY_V1 if old else _ROOT_V2) / f"penstock-test-{os.getpid()}-{mib}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(mib << 20))
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        yield None
        return
    try:
        yield Limit(shell(f"echo $$ > {group}/cgroup.procs"))
    finally:
        for _ in range(50):  # its last process may still be ending
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


def run(limit: Limit, command: tuple[object, ...], env: Mapping[str, str] | None = None) -> Outcome:
    """Run `command` under `limit`; code None if it was still running after LIMIT_S."""
    variables = {name: value for name, value in os.environ.items() if name not in limit.without} | dict(env or {})
    started_s = time.monotonic()
    process = subprocess.Popen(
        [*limit.prefix, *map(str, command)],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    code: int | None
    try:
        output, errors = process.communicate(timeout=LIMIT_S)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, errors = process.communicate()
        code = None
    return Outcome(code, time.monotonic() - started_s, output, errors)


_DROP_IN = """
import sys
import torch
from penstock.loaders import DataLoader, LoaderError

class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 256
    def __getitem__(self, index):
        return torch.full((3, {size}, {size}), index % 256, dtype=torch.uint8), index

if __name__ == "__main__":
    loader = DataLoader(Pictures(), batch_size={batch}, shuffle=True{workers})
    try:
        seen = sorted(index for _, indices in loader for index in indices.tolist())
    except LoaderError as error:
        sys.exit(print(error, file=sys.stderr) or error.exit_code)
    assert seen == list(range(256)), seen
"""


def drop_in(folder: Path, *, size: int = 224, batch: int = 64, workers: int | None = None) -> tuple[object, ...]:
    """Return a script with the drop-in DataLoader, as a command."""
    script = folder / f"drop_in_{size}_{batch}_{workers}.py"
    given = "" if workers is None else f", num_workers={workers}"
    script.write_text(_DROP_IN.format(size=size, batch=batch, workers=given))
    return (sys.executable, script)
