"""torchrun whose exit code is that of its ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import eventually
from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from penstock.bench import rank_launcher


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([3, 3], 3),
        ([1, 3], 3),  # rank 0 lost its peer
        ([143, 1], 143),
        ([1, 1], 1),
        ([1, -signal.SIGKILL], 137),
    ],
)
def test_the_exit_code_is_that_of_the_rank_that_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], codes: list[int], expected: int
) -> None:
    failures = {rank: ProcessFailure(rank, 1000 + rank, code, "") for rank, code in enumerate(codes)}

    def fail() -> None:
        raise ChildFailedError("penstock", failures)

    monkeypatch.setattr(run, "main", fail)
    with pytest.raises(SystemExit) as caught:
        rank_launcher.main()
    assert caught.value.code == expected
    assert f"rank 1 ended with {codes[1]}\n" in capsys.readouterr().err


def test_sigterm_reaches_the_ranks_and_is_the_exit_code(tmp_path: Path) -> None:
    """Of torchrun as it is: one real start."""
    ranks = 'trap "touch saved.$RANK; exit 143" TERM; touch up.$RANK; while :; do sleep 0.05; done'
    launcher = [sys.executable, "-W", "ignore", "-m", "penstock.bench.rank_launcher", "--standalone"]
    command = [*launcher, "--nproc-per-node=2", "--no-python", "bash", "-c", ranks]
    running = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, env=os.environ, text=True)
    try:
        up = eventually(lambda: len(list(tmp_path.glob("up.*"))) == 2 or running.poll() is not None, 60)
        running.terminate()
        errors = running.communicate(timeout=60)[1]
    finally:
        running.kill()
        running.wait()
    assert up, errors
    assert running.returncode == 143, errors
    assert sorted(path.name for path in tmp_path.glob("saved.*")) == ["saved.0", "saved.1"]
    assert "Traceback" not in errors
