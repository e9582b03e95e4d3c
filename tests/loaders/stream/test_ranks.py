"""The place of a process among the ranks, and what ranks must have in common."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from penstock.loaders.stream.ranks import distributed_place, refuse_disagreement
from penstock.pipelines.errors import LoaderError

VARIABLES = ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS")


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Only the environment variables of the parameter."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for pair in request.param.split():
        name, _, value = pair.partition("=")
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("setting", "place"),
    [
        ("", (0, 1)),
        ("RANK=1 WORLD_SIZE=2", (1, 2)),
        ("WORLD_SIZE=1", (0, 1)),
        ("RANK= WORLD_SIZE=", (0, 1)),
        ("RANK=0", (0, 1)),
        ("RANK=1 WORLD_SIZE=2 SLURM_PROCID=1 SLURM_NTASKS=2", (1, 2)),
        ("SLURM_PROCID=0 SLURM_NTASKS=1", (0, 1)),
        ("SLURM_NTASKS=2", (0, 1)),  # of a job, in a shell of its own
    ],
    indirect=["setting"],
)
@pytest.mark.usefixtures("setting")
def test_the_place_is_that_of_the_variables(place: tuple[int, int]) -> None:
    assert distributed_place() == distributed_place(certain=False) == place
    assert distributed_place(3, 4) == (3, 4)


@pytest.mark.parametrize(
    ("setting", "for_now"),
    [("WORLD_SIZE=2", (0, 2)), ("RANK=1", (0, 1)), ("RANK= WORLD_SIZE=3", (0, 3))],
    indirect=["setting"],
)
@pytest.mark.usefixtures("setting")
def test_a_place_that_nothing_tells_is_refused(for_now: tuple[int, int]) -> None:
    assert distributed_place(certain=False) == for_now
    with pytest.raises(LoaderError, match=r"E-MISUSE.*nothing says.*set RANK and WORLD_SIZE"):
        distributed_place()


@pytest.mark.parametrize("setting", ["SLURM_PROCID=0 SLURM_NTASKS=2"], indirect=True)
@pytest.mark.usefixtures("setting")
def test_tasks_of_srun_that_are_no_ranks_are_told_what_they_take() -> None:
    with pytest.warns(UserWarning, match=r"2 tasks.*all of the data.*RANK=\$SLURM_PROCID"):
        assert distributed_place() == (0, 1)


@pytest.mark.parametrize("setting", ["RANK=one WORLD_SIZE=2"], indirect=True)
@pytest.mark.usefixtures("setting")
def test_a_variable_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match="RANK is 'one'"):
        distributed_place(certain=False)


def test_ranks_that_differ_are_named_with_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    same = {"seed": 1, "fingerprint": "a" * 64}
    refuse_disagreement({0: same, 1: dict(same)})
    with pytest.raises(LoaderError) as caught:
        refuse_disagreement({0: same, 1: same, 2: {**same, "seed": 2}, 3: {**same, "fingerprint": "b" * 64}})
    assert caught.value.code == "E-STATE"
    assert "ranks 2, 3 and rank 0" in caught.value.cause
    assert "seed (1 and 2), fingerprint" in caught.value.cause
    assert "aaa" not in caught.value.cause
