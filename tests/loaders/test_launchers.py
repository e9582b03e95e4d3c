"""Two real ranks that learn their rank after their loaders were created: Lightning, Accelerate, srun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forked_commands import Commands
from gloo_ranks import run_ranks
from photo_folder import write_folder

from penstock.loaders import create_loader
from penstock.pipelines import imagenet_train

NUM_PHOTOS, BATCH, EPOCHS = 40, 6, 2

COMMON = """
import json, os, pickle, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import torch
from penstock.loaders import create_loader
from penstock.pipelines import imagenet_eval, imagenet_train

torch.set_num_threads(1)

def loaders(photos, **settings):
    settings = {"batch_size": 6, "seed": 3, "workers": 0, "with_index": True, **settings}
    return (create_loader(photos, pipeline=imagenet_train(16), **settings),
            create_loader(photos, pipeline=imagenet_eval(16), **settings))
"""

LIGHTNING = (
    COMMON
    + """
import lightning

class Classifier(lightning.LightningModule):
    def __init__(self, out):
        super().__init__()
        self.out, self.seen, self.judged = out, [], []
        self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 4))

    def training_step(self, batch, _):
        self.seen.append((self.current_epoch, batch[2].tolist()))
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.judged += [place for place in batch[2].tolist() if place >= 0]

    def on_fit_end(self):
        Path(f"{self.out}.{self.global_rank}").write_text(json.dumps([self.seen, self.judged]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

if __name__ == "__main__":
    photos, out = sys.argv[1:]
    train, judge = loaders(photos)
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", logger=False,
                                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                                num_sanity_val_steps=0, default_root_dir=os.path.dirname(out))
    trainer.fit(Classifier(out), train, judge)
"""
)

ACCELERATE = (
    COMMON
    + """
import accelerate

def work(out, train, judge):
    accelerator = accelerate.Accelerator(cpu=True)
    seen = [(epoch, index.tolist()) for epoch in range(2) for _, _, index in train]
    judged = [place for _ in range(2) for _, _, index in judge for place in index.tolist() if place >= 0]
    Path(f"{out}.{accelerator.process_index}").write_text(json.dumps([seen, judged]))

if __name__ == "__main__":
    photos, out = sys.argv[1:]
    accelerate.debug_launcher(work, (out, *loaders(photos)), num_processes=2)
"""
)

RUNS = {"lightning": LIGHTNING, "accelerate": ACCELERATE}


@pytest.fixture(scope="module")
def stream(photos: Path) -> list[tuple[int, list[int]]]:
    """(epoch, indices) of the steps of one rank with a batch as large as that of two."""
    settings = {"batch_size": 2 * BATCH, "seed": 3, "workers": 0}
    with create_loader(photos, pipeline=imagenet_train(16), **settings) as loader:
        return [(batch.epoch, batch.index.tolist()) for _ in range(EPOCHS) for batch in loader.batches()]


def assert_halves(results: list[Any], stream: list[tuple[int, list[int]]]) -> None:
    """Each step of the two ranks is one of the stream; each validation serves all photos once, half per rank."""
    (first, judged_first), (second, judged_second) = results
    assert [(a[0], a[1] + b[1]) for a, b in zip(first, second, strict=True)] == stream
    assert sorted(judged_first + judged_second) == sorted(EPOCHS * list(range(NUM_PHOTOS)))
    assert judged_first
    assert judged_second


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_share_the_stream(photos: Path, stream: list[Any], tmp_path: Path, name: str) -> None:
    file, out = tmp_path / "train.py", tmp_path / "out"
    file.write_text(RUNS[name])
    clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    done = subprocess.run(
        [sys.executable, file, photos, out],
        env={**clean, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert_halves([json.loads(Path(f"{out}.{rank}").read_text()) for rank in (0, 1)], stream)


SRUN = (
    COMMON
    + """
import torch.distributed as dist
from penstock.loaders import LoaderError

rank, world, store, out, photos = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
os.environ |= {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "2", "WORLD_SIZE": "2"}  # as job scripts export it
result = {}

def taken(line, **settings):
    try:
        made = {"source": photos, "pipeline": imagenet_train(16), "batch_size": 6, "seed": 3, "workers": 0, **settings}
        call = compile("create_loader(**made)", line, "eval")  # loaders of one line are compared in their order
        with eval(call, {"create_loader": create_loader, "made": made}) as loader:
            next(loader.batches())
        return "fine"
    except LoaderError as error:
        return error.line()

train, judge = pickle.loads(pickle.dumps(loaders(photos)))  # as launchers send them to ranks that they spawn
result["length"] = len(train)
result["too early"] = taken("too early")
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
seen = [(batch.epoch, batch.index.tolist()) for _ in range(2) for batch in train.batches()]
judged = [place for _ in range(2) for batch in judge.batches() for place in batch.index.tolist() if place >= 0]
result["stream"] = [seen, judged]

# Ranks with loaders that differ: rank 0 comes first.
other = Path(photos).with_name("other")
differing = {
    "the same": {},
    "workers": {"workers": rank},
    "photos": {"source": [photos, str(other)][rank]},
    "seed": {"seed": rank},
    "pipeline": {"dtype": [torch.float32, torch.uint8][rank]},
    "batch_size": {"batch_size": [6, 4][rank]},
    "pad": {"pad": [None, False][rank]},
    "alone": {"seed": rank, "rank": 0, "world_size": 1},
}
if rank == 0:
    create_loader(photos, batch_size=4, seed=9)  # which the other rank does not make
for name, settings in differing.items():
    if rank == 1:
        dist.barrier()
    result[name] = taken(name, **settings)
    if rank == 0:
        dist.barrier()

# The group goes: an epoch that begins now is this process's own.
dist.destroy_process_group()
del os.environ["WORLD_SIZE"], os.environ["SLURM_NTASKS"]
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    result["afterwards"] = [batch.index.tolist() for batch in train.batches()]
result["warned"] = [str(each.message) for each in warned]
result["length afterwards"] = len(train)
Path(f"{out}.{rank}.json").write_text(json.dumps(result))
os._exit(0)
"""
)


@pytest.fixture(scope="module")
def tasks(photos: Path, tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> list[Any]:
    """Results of two srun tasks: WORLD_SIZE without RANK, then torch.distributed, then loaders that differ."""
    write_folder(photos.with_name("other"), NUM_PHOTOS, classes=2)
    return run_ranks(commands, SRUN, tmp_path_factory.mktemp("tasks"), 2, str(photos))


def test_srun_tasks_share_the_stream_once_torch_distributed_is_initialised(tasks: list[Any], stream: list[Any]) -> None:
    assert_halves([task["stream"] for task in tasks], stream)
    assert {task["length"] for task in tasks} == {NUM_PHOTOS // (2 * BATCH)}


def test_a_task_that_cannot_know_its_rank_is_refused(tasks: list[Any]) -> None:
    for task in tasks:
        assert "LoaderError[E-MISUSE]" in task["too early"]
        assert "WORLD_SIZE is 2" in task["too early"]


def test_an_epoch_without_other_ranks_is_served_whole_with_a_warning(tasks: list[Any]) -> None:
    for task in tasks:
        (warning,) = task["warned"]
        assert "torch.distributed with 2 ranks has ended" in warning
        served = [place for batch in task["afterwards"] for place in batch]
        assert len(set(served)) == len(served) == NUM_PHOTOS // BATCH * BATCH
        assert task["length afterwards"] == NUM_PHOTOS // BATCH


@pytest.mark.parametrize("what", ["the same", "workers", "alone"])
def test_ranks_may_differ_in_settings_that_change_nothing(tasks: list[Any], what: str) -> None:
    assert [task[what] for task in tasks] == ["fine", "fine"]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("photos", "differ in fingerprint, classes"),
        ("seed", "differ in seed (1 and 0)"),
        ("pipeline", "differ in dtype ('uint8' and 'float32')"),
        ("batch_size", "differ in batch_size (4 and 6)"),
        ("pad", "differ in pad (False and True)"),
    ],
)
def test_ranks_with_different_loaders_are_refused_by_setting(tasks: list[Any], what: str, words: str) -> None:
    assert tasks[0][what] == "fine"  # the first rank does not wait
    assert tasks[1][what].startswith("LoaderError[E-STATE] rank=1 cause=rank 1 and rank 0 ")
    assert words in tasks[1][what]
