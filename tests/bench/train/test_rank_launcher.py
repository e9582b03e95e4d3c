"""torchrun with the exit code of its ranks; train/test_torchrun.py runs the real one."""

from __future__ import annotations

import signal

import pytest
from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from penstock.bench.train import rank_launcher
from penstock.pipelines.errors import EXIT_WORKER


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([3, 3], 3),
        ([1, 3], 3),  # rank 0 lost its peer
        ([143, 1], 143),
        ([1, 1], 1),
        ([1, -signal.SIGKILL], 137),
        ([EXIT_WORKER, 3], 3),
        ([EXIT_WORKER, -signal.SIGKILL], 137),
    ],
)
def test_the_exit_code_is_that_of_the_failed_rank(
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
