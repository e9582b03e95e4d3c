"""The rank of a process, and the settings that all ranks must share."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import pytest
import torch.distributed as dist
from memory_source import MemorySource
from photo_folder import photo

from penstock.loaders import create_loader
from penstock.loaders.order import ranks
from penstock.loaders.order.agreement import refuse_disagreement
from penstock.loaders.order.ranks import distributed_place
from penstock.pipelines import imagenet_train
from penstock.pipelines.errors import LoaderError

VARIABLES = (
    *("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE"),
    *("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
)


Place = tuple[int, int]


@pytest.fixture
def place_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Place]:
    """Return what distributed_place finds if only a text such as "RANK=1 WORLD_SIZE=2" is set."""

    def find(setting: str, *, certain: bool = True) -> Place:
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for pair in setting.split():
            monkeypatch.setenv(*pair.split("="))
        return distributed_place(certain=certain)

    return find


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
        ("SLURM_NTASKS=2", (0, 1)),  # from the job, in an interactive shell
        ("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", (1, 2)),
        ("MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=2", (1, 2)),
        ("PMI_RANK=3 PMI_SIZE=4", (3, 4)),
        # Hydra's mpirun within a SLURM job: srun starts one proxy per node.
        ("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=1 PMI_RANK=1 PMI_SIZE=2", (1, 2)),
        ("SLURM_PROCID=0 PMI_RANK=1 PMI_SIZE=2", (1, 2)),
        ("HOROVOD_RANK=1 HOROVOD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 WORLD_SIZE=1", (1, 2)),
        ("RANK=0 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4", (0, 2)),
        ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", (0, 1)),
    ],
)
def test_the_place_comes_from_the_variables(place_in: Callable[..., Place], setting: str, place: Place) -> None:
    assert place_in(setting) == place_in(setting, certain=False) == place
    assert distributed_place(3, 4) == (3, 4)


class RayTrain:
    """A stand-in for ray.train: `place` is its context's, an error is raised; `warns`: as older versions."""

    def __init__(self, place: Place | Exception, *, warns: bool = False) -> None:
        self.place, self.warns = place, warns

    def get_context(self) -> RayTrain:
        if isinstance(self.place, Exception):
            raise self.place
        return self

    def get_world_rank(self) -> int:
        if self.warns:
            warnings.warn("`get_world_rank` is meant to only be called inside a function", stacklevel=1)
        return self.place[0]  # type: ignore[index]

    def get_world_size(self) -> int:
        return self.place[1]  # type: ignore[index]


@pytest.mark.parametrize(
    ("train", "setting", "place"),
    [
        (RayTrain((1, 2)), "", (1, 2)),
        (RayTrain((1, 2)), "PMI_RANK=3 PMI_SIZE=4", (1, 2)),  # of the process that started Ray on this node
        (RayTrain((0, 1)), "RANK=1 WORLD_SIZE=4", (1, 4)),
        (RayTrain((0, 1), warns=True), "", (0, 1)),  # outside a training function
        (RayTrain(RuntimeError("outside of a Ray Train training function")), "RANK=1 WORLD_SIZE=2", (1, 2)),
        (RayTrain(DeprecationWarning("in a function passed to Ray Tune")), "", (0, 1)),
    ],
)
def test_the_place_comes_from_ray_train(
    place_in: Callable[..., Place], monkeypatch: pytest.MonkeyPatch, train: RayTrain, setting: str, place: Place
) -> None:
    monkeypatch.setitem(sys.modules, "ray.train", train)
    assert place_in(setting) == place_in(setting, certain=False) == place


@pytest.mark.parametrize(
    ("setting", "for_now", "words"),
    [
        ("WORLD_SIZE=2", (0, 2), "is unknown"),
        ("RANK=1", (0, 1), "is unknown"),
        ("RANK= WORLD_SIZE=3", (0, 3), "is unknown"),
        ("PMI_SIZE=2", (0, 2), "PMI_SIZE is 2, but PMI_RANK does not set"),
        (
            "HOROVOD_RANK=1 HOROVOD_SIZE=2 PMI_RANK=3 PMI_SIZE=4",
            (1, 2),
            r"rank 1 of 2 by horovodrun and 3 of 4 by mpirun \(PMI\)",
        ),
    ],
)
def test_a_place_that_is_not_certain_is_refused(
    place_in: Callable[..., Place], setting: str, for_now: Place, words: str
) -> None:
    assert place_in(setting, certain=False) == for_now
    with pytest.raises(LoaderError, match=f"E-MISUSE.*{words}.*set RANK and WORLD_SIZE.*pass rank and world_size"):
        place_in(setting)


@pytest.mark.parametrize(
    ("setting", "group", "words"),
    [
        ("SLURM_PROCID=0 SLURM_NTASKS=2", 1, r"2 tasks.*all of the data.*RANK=\$SLURM_PROCID"),
        ("SLURM_PROCID=1 SLURM_NTASKS=2 PMI_RANK=1 PMI_SIZE=2", 1, r"2 tasks.*all of the data.*RANK=\$SLURM_PROCID"),
        ("", 2, "with 2 ranks has ended.*all of the data.*rank=0, world_size=1"),
    ],
)
def test_a_process_that_may_be_one_of_several_warns_that_it_reads_all_data(
    place_in: Callable[..., Place], monkeypatch: pytest.MonkeyPatch, setting: str, group: int, words: str
) -> None:
    monkeypatch.setattr(ranks, "_group_size", group)
    with pytest.warns(UserWarning, match=words):
        assert place_in(setting) == (0, 1)


def test_a_variable_that_is_not_a_number_is_named(place_in: Callable[..., Place]) -> None:
    with pytest.raises(ValueError, match="RANK is 'one'"):
        place_in("RANK=one WORLD_SIZE=2", certain=False)


def test_ranks_that_differ_are_named_with_their_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    same = {"seed": 1, "fingerprint": "a" * 64}
    refuse_disagreement({0: same, 1: dict(same)})
    with pytest.raises(LoaderError) as caught:
        refuse_disagreement({0: same, 1: same, 2: {**same, "seed": 2}, 3: {**same, "fingerprint": "b" * 64}})
    assert caught.value.code == "E-STATE"
    assert "ranks 2, 3 and rank 0" in caught.value.cause
    assert "seed (2 and 1), fingerprint" in caught.value.cause
    assert "aaa" not in caught.value.cause


def test_a_state_of_one_process_resumes_on_a_rank(
    place_in: Callable[..., Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 samples of the epoch are left, and a step of the two ranks takes 8: they begin the next epoch."""
    source = MemorySource([photo(k) for k in range(40)])
    place_in("", certain=False)
    with create_loader(source, pipeline=imagenet_train(16), batch_size=4, workers=0) as alone:
        for _ in zip(range(9), alone, strict=False):
            pass
        state = alone.state_dict()
    with create_loader(source, pipeline=imagenet_train(16), batch_size=4, workers=0) as loader:
        loader.load_state_dict(state)
        place_in("RANK=1 WORLD_SIZE=2")
        with pytest.warns(UserWarning, match="the last 4 samples of epoch 0 are left out, because a step takes 8"):
            epochs = [batch.epoch for batch in loader.batches()]
    assert epochs == [1] * 5
