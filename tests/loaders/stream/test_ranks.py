"""The place of a process among the ranks, and what ranks must have in common."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from penstock.loaders.stream import ranks
from penstock.loaders.stream.agreement import refuse_disagreement
from penstock.loaders.stream.ranks import distributed_place
from penstock.pipelines.errors import LoaderError

VARIABLES = (
    *("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE"),
    *("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
)


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
        ("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", (1, 2)),
        ("MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=2", (1, 2)),
        ("PMI_RANK=3 PMI_SIZE=4", (3, 4)),
        # mpirun of Hydra within a job of SLURM: srun starts one proxy per node.
        ("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=1 PMI_RANK=1 PMI_SIZE=2", (1, 2)),
        ("SLURM_PROCID=0 PMI_RANK=1 PMI_SIZE=2", (1, 2)),
        ("HOROVOD_RANK=1 HOROVOD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 WORLD_SIZE=1", (1, 2)),
        ("RANK=0 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4", (0, 2)),
        ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", (0, 1)),
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


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("PMI_SIZE=2", "PMI_SIZE is 2, and PMI_RANK does not say"),
        (
            "HOROVOD_RANK=1 HOROVOD_SIZE=2 PMI_RANK=3 PMI_SIZE=4",
            r"rank 1 of 2 by horovodrun and 3 of 4 by mpirun \(PMI\)",
        ),
    ],
    indirect=["setting"],
)
@pytest.mark.usefixtures("setting")
def test_a_launcher_that_does_not_say_which_rank_this_is_is_refused(words: str) -> None:
    with pytest.raises(LoaderError, match=f"E-MISUSE.*{words}.*pass rank and world_size"):
        distributed_place()


@pytest.mark.parametrize(
    "setting", ["SLURM_PROCID=0 SLURM_NTASKS=2", "SLURM_PROCID=1 SLURM_NTASKS=2 PMI_RANK=1 PMI_SIZE=2"], indirect=True
)
@pytest.mark.usefixtures("setting")
def test_tasks_of_srun_that_are_no_ranks_are_told_what_they_take() -> None:
    with pytest.warns(UserWarning, match=r"2 tasks.*all of the data.*RANK=\$SLURM_PROCID"):
        assert distributed_place() == (0, 1)


@pytest.mark.parametrize("setting", [""], indirect=True)
@pytest.mark.usefixtures("setting")
def test_a_process_whose_group_has_ended_warns_that_it_takes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_group_size", 2)
    with pytest.warns(UserWarning, match=r"had 2 ranks, has ended.*all of the data.*rank=0, world_size=1"):
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
    assert "seed (2 and 1), fingerprint" in caught.value.cause
    assert "aaa" not in caught.value.cause
