"""A job of torchrun's that a batch system ends: SIGTERM to ranks, workers and torchrun alike."""

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

from gloo_ranks import run_ranks
from photo_folder import write_folder
from processes import eventually, processes_with

TRAINING = """
import json, os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn
from penstock.bench.train.checkpoint_keeper import CheckpointPlan
from penstock.bench.exits.stop_signals import SignalExit, exit_on_signals
from penstock.bench.train.loop import train
from penstock.bench.step.settings import TrainSettings
from penstock.loaders import create_loader
from penstock.pipelines import imagenet_train

torch.set_num_threads(1)
KIND = {"workers_are": "processes", "prefetch": 1}  # a batch system's signal reaches them, too

def run(photos, file, workers, wait_at=0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 49, 3))
    if wait_at:
        batches = []
        def wait(*_):
            batches.append(1)
            if len(batches) == wait_at:  # in the middle of an epoch, until the signal has been sent
                Path(f"{file}.there.{dist.get_rank()}").touch()
                while not Path(f"{file}.sent").exists():
                    time.sleep(0.01)
        model.register_forward_pre_hook(wait)
    plan = CheckpointPlan(file=Path(file), resume=True)
    with create_loader(photos, pipeline=imagenet_train(16), batch_size=2, workers=workers, **KIND) as loader:
        report = train(model, loader, TrainSettings(epochs=2, lr=0.02), checkpoint=plan)
    weights = [parameter.double().sum().item() for parameter in model.parameters()]
    return [(epoch.epoch, epoch.loss, epoch.images) for epoch in report.epochs], weights
"""

STOPPED = (
    TRAINING
    + """
photos, file = sys.argv[1:]
exit_on_signals()
dist.init_process_group("gloo")
Path(f"{file}.whole.{dist.get_rank()}").write_text(json.dumps(run(photos, f"{file}.whole", 0)))
try:
    run(photos, file, 1, wait_at=5)
except SignalExit as error:
    Path(f"{file}.ended.{dist.get_rank()}").write_text(json.dumps([error.code, error.note]))
    raise
"""
)

RESUMED = (
    TRAINING
    + """
rank, world, store, out, photos, file = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
Path(f"{out}.{rank}.json").write_text(json.dumps(run(photos, file, 0)))
os._exit(0)  # gloo's threads may abort the interpreter's shutdown: see test_distributed.py
"""
)

MARK = "PENSTOCK_TEST_RUN"
TORCHRUN = (sys.executable, "-m", "penstock.bench.train.rank_launcher", "--standalone", "--nproc-per-node", "2")


def test_sigterm_to_a_whole_job_saves_it_and_it_goes_on_as_if_nothing_had_happened(tmp_path):
    photos, file, mark = write_folder(tmp_path / "photos", 40), tmp_path / "run.pt", uuid.uuid4().hex

    def of_ranks(what):
        return [Path(f"{file}.{what}.{rank}") for rank in (0, 1)]

    (tmp_path / "train.py").write_text(STOPPED)
    job = subprocess.Popen(
        [*TORCHRUN, tmp_path / "train.py", photos, file],
        env={**os.environ, MARK: mark, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,  # torchrun tells what it does
    )
    try:
        assert eventually(lambda: all(path.exists() for path in of_ranks("there")), 120)
        processes = processes_with(MARK, mark)
        assert sum("forkserver" in line for line in processes.values()) == 4  # of each rank: server and worker
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
    whole = [json.loads(path.read_text()) for path in of_ranks("whole")]
    assert run_ranks(RESUMED, tmp_path, 2, str(photos), str(file)) == whole
