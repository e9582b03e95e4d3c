"""A torchrun job that a batch system ends: SIGTERM to ranks, workers and torchrun."""

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from photo_folder import write_folder
from processes import eventually, processes_with

TRAINING = """
import json, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn
from penstock.bench.train.step.technique_settings import CheckpointPlan
from penstock.bench.train.stop_signals import SignalExit, exit_on_signals
from penstock.bench.train.loop import train
from penstock.bench.train.step.settings import TrainSettings
from penstock.loaders import create_loader
from penstock.pipelines import imagenet_train

photos, file = sys.argv[1:]
exit_on_signals()
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 49, 3))
batches = []

def wait(*_):
    batches.append(1)
    if len(batches) == 5:  # in the middle of an epoch, until the signal has been sent
        Path(f"{file}.there.{dist.get_rank()}").touch()
        while not Path(f"{file}.sent").exists():
            time.sleep(0.01)

model.register_forward_pre_hook(wait)
data = {"pipeline": imagenet_train(16), "batch_size": 2, "workers": 1}
kind = {"workers_are": "processes", "prefetch": 1}  # a batch system's signal reaches them, too
try:
    with create_loader(photos, **data, **kind) as loader:
        train(model, loader, TrainSettings(epochs=2, lr=0.02), checkpoint=CheckpointPlan(file=Path(file)))
except SignalExit as error:
    Path(f"{file}.ended.{dist.get_rank()}").write_text(json.dumps([error.code, error.note]))
    raise
"""

MARK = "PENSTOCK_TEST_RUN"
TORCHRUN = (sys.executable, "-m", "penstock.bench.train.rank_launcher", "--standalone", "--nproc-per-node", "2")


@pytest.mark.slow
def test_sigterm_to_a_whole_job_saves_it_and_sets_its_exit_code(tmp_path):
    """test_checkpoint.py shows that it resumes to the same bits."""
    photos, file, mark = write_folder(tmp_path / "photos", 40), tmp_path / "run.pt", uuid.uuid4().hex

    def of_ranks(what):
        return [Path(f"{file}.{what}.{rank}") for rank in (0, 1)]

    (tmp_path / "train.py").write_text(TRAINING)
    job = subprocess.Popen(
        [*TORCHRUN, tmp_path / "train.py", photos, file],
        env={**os.environ, MARK: mark, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,  # torchrun prints its actions
    )
    try:
        assert eventually(lambda: all(path.exists() for path in of_ranks("there")), 120)
        processes = processes_with(MARK, mark)
        assert sum("forkserver" in line for line in processes.values()) == 4  # for each rank: server and worker
        for pid in processes:
            os.kill(pid, signal.SIGTERM)
        file.with_name("run.pt.sent").touch()
        assert job.wait(120) == 143  # torchrun's own would be 1
        assert eventually(lambda: not processes_with(MARK, mark))
    finally:
        for pid in processes_with(MARK, mark):
            os.kill(pid, signal.SIGKILL)
        job.wait()
    note = f"saved to {str(file)!r} after update 6 of epoch 1"  # it came in the fifth; they agree one later
    assert [json.loads(path.read_text()) for path in of_ranks("ended")] == [[143, note]] * 2
    assert file.stat().st_size > 0
