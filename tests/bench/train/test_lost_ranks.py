"""Ranks wait for each other only for the given time, and report a lost rank in one line."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from forked_commands import Commands
from gloo_ranks import run_ranks

from penstock.bench.train.rank_group import join_process_group

SCRIPT = """
import json, os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from penstock.bench.train.rank_group import gather_from_ranks, join_process_group
from penstock.pipelines.errors import LoaderError

rank, world, store, out, port = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
result = []

def write():
    Path(f"{out}.{rank}.json").write_text(json.dumps(result))

try:
    with join_process_group("cpu", timeout_s=3):
        result += gather_from_ranks({"rank": rank, "words": "x" * 100 * rank, "none": []})
        if rank == 1:  # it makes no step, until the other one has given up
            while not Path(f"{out}.0.json").exists():
                time.sleep(0.05)
        if rank == 0:
            try:
                dist.all_reduce(torch.ones(1))
            finally:
                write()
except LoaderError as error:
    result.append(error.line())
write()
os._exit(0)
"""


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


@pytest.mark.slow
def test_a_rank_that_does_not_answer_is_reported_in_one_line(commands: Commands, tmp_path: Path) -> None:
    first, second = run_ranks(commands, SCRIPT, tmp_path, 2, free_port())
    expected = [{"rank": 0, "words": "", "none": []}, {"rank": 1, "words": "x" * 100, "none": []}]
    assert first[:2] == second[:2] == expected
    assert first[2].startswith("LoaderError[E-WORKER] rank=0 cause=another rank has ended or does not answer (")
    assert "--rank-timeout" in first[2]


def test_other_errors_and_single_processes_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match="of another kind"), join_process_group("cpu", 1.0):
        raise RuntimeError("of another kind")
