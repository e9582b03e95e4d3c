"""The guide to Ray, on a cluster of two workers on this machine; needs `pip install 'ray[train]'` (`nox -s ray`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from forked_commands import Commands
from gloo_ranks import run_ranks
from photo_folder import write_folder

from penstock.loaders import open_source
from penstock.loaders.cache_build.build import build_cache

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "ray.md"
WORKERS, NUM_PHOTOS, STEPS = 2, 40, 5  # steps of an epoch with a batch size of 4
SAVED, KILLED = 4, 7  # steps before the checkpoint, and before a worker is killed

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings


# The workers wait for each other in each step, as those that train a model do; the second one is killed once.
STEP = f"""
def take_step(index):
    import json, os, signal, time, torch
    rank, killed = ray.train.get_context().get_world_rank(), os.path.join(RECORD, "killed")
    torch.distributed.all_reduce(torch.zeros(1))
    with open(os.path.join(RECORD, f"worker{{rank}}"), "a+") as file:
        file.write(json.dumps(index.tolist()) + "\\n")
        file.seek(0)
        count = len(file.readlines())
    if rank == 1 and count == {KILLED} and not os.path.exists(killed):
        open(killed, "w").close()
        while not os.path.exists(os.path.join(RECORD, "runs", "resnet", "checkpoint_manager_snapshot.json")):
            time.sleep(0.01)  # until Ray has registered the checkpoint
        os.kill(os.getpid(), signal.SIGKILL)
"""
REFERENCE = """
import json, sys
import torch.distributed as dist
from penstock.loaders import create_loader

if __name__ == "__main__":
    rank, world, store, out, photos = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(world))
    loader = create_loader(photos, batch_size=4, seed=7, with_index=True, workers=0)
    served = []
    while loader.epoch < 3:
        served += [index.tolist() for _, _, index in loader]
        dist.barrier()
    dist.destroy_process_group()
    open(f"{out}.{rank}.json", "w").write(json.dumps(served))
"""
# Trainers without a process group, such as JAX's, are of this class.
WITHOUT_GROUP = """
import json, os
import ray.train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

def train(config):
    from penstock.loaders import create_loader
    loader = create_loader(PHOTOS, batch_size=4, seed=7, with_index=True, workers=0)
    rank = ray.train.get_context().get_world_rank()
    with open(os.path.join(RECORD, f"worker{rank}"), "w") as file:
        file.writelines(json.dumps(index.tolist()) + "\\n" for epoch in range(3) for _, _, index in loader)

DataParallelTrainer(
    train,
    scaling_config=ray.train.ScalingConfig(num_workers=2),
    run_config=ray.train.RunConfig(storage_path=RECORD),
).fit()
"""


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Any]:
    """Return the module ray, with a cluster of two processors, and the cache folder of its users in `folder`."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray[train]'")
    pytest.importorskip("ray.train", reason="Ray Train is not installed: pip install 'ray[train]'")
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory(dir="/tmp") as short:  # for the paths of sockets
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        settings = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": 100_000_000}
        ray.init(num_cpus=WORKERS, _temp_dir=short, **settings)
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def reference(commands: Commands, folder: Path) -> list[list[list[int]]]:
    """Return the indices of each step of three epochs, for each of two ranks of torch.distributed."""
    return run_ranks(commands, REFERENCE, folder, WORKERS, str(folder / "photos"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with photos in `photos`."""
    folder = tmp_path_factory.mktemp("ray")
    write_folder(folder / "photos", NUM_PHOTOS, classes=2)
    return folder


def run(code: str, **names: str) -> None:
    """Run code as the script of a Ray job."""
    exec(compile(code, PAGE, "exec"), {"__name__": "__main__", **names})


def block(number: int, *changes: tuple[str, str]) -> str:
    """Return a Python block of the guide with changed texts, each of which it must contain once."""
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)[number]
    for old, new in changes:
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return code


def read_steps(record: Path) -> list[list[list[int]]]:
    """Return the indices of the steps that each worker noted."""
    return [[json.loads(line) for line in (record / f"worker{n}").read_text().splitlines()] for n in range(WORKERS)]


@pytest.mark.usefixtures("cluster")
def test_a_run_continues_after_a_worker_was_killed(
    folder: Path, tmp_path: Path, reference: list[list[list[int]]]
) -> None:
    code = block(
        0,
        ("batch_size=256", "batch_size=4, with_index=True"),
        ("/data/imagenet/train", str(folder / "photos")),
        ("/data/runs", str(tmp_path / "runs")),
        ("num_workers=8, use_gpu=True", "num_workers=2"),
        ("(images, labels) in", "(images, labels, index) in"),
        ("...  # a training step", "take_step(index)"),
        ("% 1000 == 999", f"% 1000 == {SAVED - 1}"),
    )
    run(STEP + code, RECORD=str(tmp_path))
    for steps, expected in zip(read_steps(tmp_path), reference, strict=True):
        assert steps == expected[:KILLED] + expected[SAVED:]
    for epoch in range(3):
        served = [index for rank in reference for step in rank[epoch * STEPS :][:STEPS] for index in step]
        assert sorted(served) == list(range(NUM_PHOTOS))


@pytest.mark.usefixtures("cluster")
def test_workers_without_a_process_group_share_the_stream(
    folder: Path, tmp_path: Path, reference: list[list[list[int]]]
) -> None:
    pytest.importorskip("ray.train.v2.api.data_parallel_trainer", reason="this Ray has no such trainer")
    run(WITHOUT_GROUP, PHOTOS=str(folder / "photos"), RECORD=str(tmp_path))
    assert read_steps(tmp_path) == reference


@pytest.mark.usefixtures("cluster")
def test_tasks_build_the_cache_of_one_machine(folder: Path, tmp_path: Path) -> None:
    changes = (
        ("/data/imagenet/train", str(folder / "photos")),
        ("/data/train-shards", str(tmp_path / "cache")),
        (", 64\n", ", 3\n"),
        ("num_cpus=16", "num_cpus=1"),
        ("workers=16", "workers=1"),
    )
    run(block(1, *changes))
    alone = tmp_path / "alone"
    build_cache(open_source(folder / "photos"), alone, workers=0, shards=3)
    files = {path.name: path.read_bytes() for path in alone.iterdir()}
    assert len(files) == 4
    assert {path.name: path.read_bytes() for path in (tmp_path / "cache").iterdir()} == files


def test_each_node_has_an_index(cluster: Any, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(block(2, ("/data/imagenet/train", str(folder / "photos"))))
    assert capsys.readouterr().out.count("40 images") == len(cluster.nodes()) == 1
    assert [path for path in (folder / "cache").rglob("*") if path.is_file()]
