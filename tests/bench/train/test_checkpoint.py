"""A run that is stopped and resumed: the same losses and weights, on the same number of ranks or another."""

import dataclasses
import json
import os
import signal

import pytest
import torch
from gloo_ranks import run_ranks
from one_thread import one_thread  # noqa: F401
from photo_folder import write_folder
from torch import nn

from penstock.bench.train.checkpoint import RunProgress, load_checkpoint, save_checkpoint
from penstock.bench.train.loop import train
from penstock.bench.train.step.settings import TrainSettings
from penstock.bench.train.step.technique_settings import CheckpointPlan
from penstock.bench.train.step.train_step import TrainStep
from penstock.bench.train.stop_signals import SignalExit
from penstock.loaders import create_loader
from penstock.pipelines import imagenet_eval, imagenet_train
from penstock.pipelines.errors import LoaderError

SETTINGS = TrainSettings(epochs=3, lr=0.02, accumulate=2)
NUM_PHOTOS, BATCH = 40, 4  # ten steps and five updates an epoch


def new_loader(photos):
    return create_loader(photos, pipeline=imagenet_train(16), batch_size=BATCH, workers=0)


def new_judge(photos):
    return create_loader(photos, pipeline=imagenet_eval(16), batch_size=BATCH, workers=0)


def new_model():
    """With state besides weights: running statistics, and dropout's random state."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(8 * 49, 3),
        )


def run(photos, settings=SETTINGS, *, validate=True, **plan):
    model = new_model()
    with new_loader(photos) as loader, new_judge(photos) as judge:
        report = train(
            model,
            loader,
            settings,
            validation=judge if validate else None,
            checkpoint=CheckpointPlan(**plan) if plan else None,
        )
    return report, model.state_dict()


def losses(report):
    return [(epoch.epoch, epoch.loss, epoch.images, epoch.validation) for epoch in report.epochs]


def assert_same_state(own, other):
    assert own.keys() == other.keys()
    assert all(torch.equal(own[key], other[key]) for key in own)


@pytest.fixture(scope="module")
def whole(photos, tmp_path_factory):
    """An uninterrupted run, which saves itself now and then."""
    return run(photos, file=tmp_path_factory.mktemp("whole") / "run.pt", checkpoint_every=4)


@pytest.mark.parametrize("stop_after", [2, 5, 8, 14])
def test_a_stopped_run_resumes_to_the_same_bits(photos, whole, tmp_path, stop_after):
    file = tmp_path / "deeper" / "run.pt"
    first, _ = run(photos, file=file, stop_after=stop_after)
    assert not first.finished
    assert len(first.epochs) == (stop_after - 1) // 5
    second, weights = run(photos, file=file, resume=True)
    assert second.finished
    assert losses(first) + losses(second) == losses(whole[0])
    assert_same_state(weights, whole[1])
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "technique",
    [{"optimizer": "adamw", "schedule": "onecycle"}, {"optimizer": "sgd", "schedule": "cyclic"}],
    ids=["adamw", "sgd"],
)
def test_other_optimisers_and_schedules_resume_too(photos, tmp_path, technique):
    settings = dataclasses.replace(SETTINGS, epochs=2, accumulate=1, **technique)
    expected, weights = run(photos, settings, validate=False, file=tmp_path / "a.pt")
    run(photos, settings, validate=False, file=tmp_path / "b.pt", stop_after=7)
    resumed, others = run(photos, settings, validate=False, file=tmp_path / "b.pt", resume=True)
    assert losses(resumed) == losses(expected)
    assert_same_state(others, weights)


class Drawing:
    """A loader that draws from torch's generator at its start, like torch's DataLoader for its workers."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def __len__(self):
        return len(self._loader)

    def __iter__(self):
        torch.rand(1)
        return iter(self._loader)


def test_random_draws_of_the_loader_change_nothing(photos, whole, tmp_path):
    file = tmp_path / "run.pt"
    reports = []
    for plan in (CheckpointPlan(file=file, stop_after=8), CheckpointPlan(file=file, resume=True)):
        model = new_model()
        with new_loader(photos) as loader, new_judge(photos) as judge:
            reports.append(train(model, Drawing(loader), SETTINGS, validation=Drawing(judge), checkpoint=plan))
    assert losses(reports[0]) + losses(reports[1]) == losses(whole[0])
    assert_same_state(model.state_dict(), whole[1])


def test_a_run_killed_between_saves_resumes_from_the_last(photos, whole, tmp_path):
    file = tmp_path / "run.pt"

    class Killed(Exception):
        pass

    class Dying(Drawing):
        """The loader fails in the 17th step: update 8 of the run is complete, update 9 is half done."""

        served = 0

        def __iter__(self):
            for batch in self._loader:
                self.served += 1
                if self.served == 18:
                    raise Killed
                yield batch

    with new_loader(photos) as loader, pytest.raises(Killed):
        train(new_model(), Dying(loader), SETTINGS, checkpoint=CheckpointPlan(file=file, checkpoint_every=3))
    report, weights = run(photos, file=file, resume=True)
    assert losses(report) == losses(whole[0])[1:]
    assert_same_state(weights, whole[1])


class Signalled(Drawing):
    """A loader that signals its own process before its 15th batch: twice, as under torchrun, or losing its workers."""

    def __init__(self, loader, number, loses_workers):
        super().__init__(loader)
        self.number, self.loses_workers, self.served = number, loses_workers, 0

    def __iter__(self):
        for batch in self._loader:
            self.served += 1
            if self.served == 15:  # seven updates are made
                os.kill(os.getpid(), self.number)
                if self.loses_workers:  # torchrun and batch systems signal all processes of a job
                    raise LoaderError("E-WORKER", "worker process killed by SIGTERM")
                os.kill(os.getpid(), self.number)
            yield batch


@pytest.mark.parametrize(
    ("number", "loses_workers", "update"),
    [(signal.SIGTERM, False, 3), (signal.SIGUSR1, False, 3), (signal.SIGINT, False, 3), (signal.SIGTERM, True, 2)],
    ids=["SIGTERM", "SIGUSR1", "Ctrl-C", "workers first"],
)
def test_a_signal_waits_for_the_update_and_reports_the_checkpoint(
    photos, whole, tmp_path, number, loses_workers, update
):
    file = tmp_path / "run.pt"
    before = signal.signal(number, signal.SIG_DFL)
    try:
        plan = CheckpointPlan(file=file)
        with new_loader(photos) as served, new_judge(photos) as judge, pytest.raises(SignalExit) as caught:
            train(new_model(), Signalled(served, number, loses_workers), SETTINGS, validation=judge, checkpoint=plan)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert caught.value.code == 128 + number
    assert caught.value.note == f"saved to {str(file)!r} after update {update} of epoch 2"
    report, weights = run(photos, file=file, resume=True)
    assert losses(report) == losses(whole[0])[1:]
    assert_same_state(weights, whole[1])


class Interrupted(Drawing):
    """A loader with Ctrl-C at batch number `at`."""

    def __init__(self, loader, at):
        super().__init__(loader)
        self.at = at

    def __iter__(self):
        for batch in self._loader:
            self.at -= 1
            if self.at == 0:
                signal.raise_signal(signal.SIGINT)
            yield batch


@pytest.mark.parametrize(
    ("batch", "judged"),
    [*((batch, None) for batch in (1, 2, 3, 8, 10, 11, 19)), *((None, judged) for judged in (1, 7, 11))],
)
def test_ctrl_c_at_any_moment_and_another_epoch_change_no_bit(photos, whole, tmp_path, batch, judged):
    """Two epochs of a schedule for three, stopped and resumed, then extended: equal to three undisturbed ones."""
    file = tmp_path / "run.pt"
    short = dataclasses.replace(SETTINGS, epochs=2, schedule_epochs=3)
    with new_loader(photos) as loader, new_judge(photos) as judge:
        served, shown = Interrupted(loader, batch or 0), Interrupted(judge, judged or 0)
        with pytest.raises(SignalExit) as caught:
            train(new_model(), served, short, validation=shown, checkpoint=CheckpointPlan(file=file))
    assert (caught.value.code, caught.value.note[:9]) == (130, "saved to ")
    resumed, _ = run(photos, short, file=file, resume=True)
    extended, weights = run(photos, file=file, resume=True)
    assert losses(resumed) == losses(whole[0])[-1 - len(resumed.epochs) : 2]
    assert losses(extended) == losses(whole[0])[1:]  # the previous last epoch is reported again
    assert_same_state(weights, whole[1])


def test_constant_rates_grow_to_the_same_bits(photos, tmp_path):
    three = dataclasses.replace(SETTINGS, schedule="constant")
    _, expected = run(photos, three, validate=False, file=tmp_path / "a.pt")
    run(photos, dataclasses.replace(three, epochs=2), validate=False, file=tmp_path / "b.pt")
    _, weights = run(photos, three, validate=False, file=tmp_path / "b.pt", resume=True)
    assert_same_state(weights, expected)


@pytest.mark.parametrize("schedule", ["cosine", "onecycle", "cyclic"])
def test_a_schedule_that_grows_continues_on_the_longer_curve(tmp_path, schedule):
    def rates(epochs, updates, file=None):
        settings = dataclasses.replace(SETTINGS, epochs=epochs, schedule=schedule)
        step = TrainStep(nn.Linear(2, 2), settings, total_steps=5 * epochs)
        if file is not None:
            load_checkpoint(file, step, updates_per_epoch=5)
        found = [step.optimizer.param_groups[0]["lr"]]
        for _ in range(updates):
            step.optimizer.step()
            step.schedule.step()
            found.append(step.optimizer.param_groups[0]["lr"])
        return found, step

    progress = RunProgress(epoch=1, updates=2, totals=torch.zeros(2))
    save_checkpoint(tmp_path / "run.pt", rates(2, 7)[1], progress, updates_per_epoch=5, loader={})
    assert rates(3, 8, tmp_path / "run.pt")[0] == pytest.approx(rates(3, 15)[0][7:])
    assert rates(2, 7)[0][7] != pytest.approx(rates(3, 7)[0][7])


def test_resume_starts_without_a_file_and_keeps_a_finished_run(photos, whole, tmp_path):
    file = tmp_path / "run.pt"
    report, _ = run(photos, file=file, resume=True)
    assert losses(report) == losses(whole[0])
    again, weights = run(photos, validate=False, file=file, resume=True)
    assert again.epochs[0].ledger == report.epochs[-1].ledger
    assert [epoch.steps for epoch in again.epochs] == [0]  # the last epoch is reported again, from the saved state
    assert losses(again)[0][:3] == losses(whole[0])[-1][:3]
    assert_same_state(weights, whole[1])


@pytest.fixture(scope="module")
def saved(photos, tmp_path_factory):
    file = tmp_path_factory.mktemp("saved") / "run.pt"
    run(photos, validate=False, file=file, stop_after=3)
    return file


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": 0.03}, "lr=0.02, this run has 0.03"),
        ({"epochs": 2}, "epochs=3, which may only grow, and this run has 2"),
        ({"optimizer": "adamw"}, "optimizer='sgd'"),
        ({"accumulate": 1}, "5 updates per epoch, this run has 10"),
    ],
)
def test_another_run_is_refused(photos, saved, change, words):
    with pytest.raises(LoaderError, match=r"E-STATE") as caught:
        run(photos, dataclasses.replace(SETTINGS, **change), validate=False, file=saved, resume=True)
    assert words in str(caught.value)


def test_another_model_or_other_data_are_refused(saved, tmp_path):
    step = TrainStep(nn.Linear(3, 3), SETTINGS, total_steps=15)
    with pytest.raises(LoaderError, match=r"E-STATE.*does not fit this run"):
        load_checkpoint(saved, step, updates_per_epoch=5)
    with pytest.raises(LoaderError, match=r"E-STATE"):
        run(write_folder(tmp_path / "others", NUM_PHOTOS - 1), validate=False, file=saved, resume=True)


def test_the_scale_of_the_gradients_is_part_of_a_checkpoint(tmp_path):
    """The scaler is used with fp16, which only CUDA supports; here it scales float32."""

    def step_with_scaler():
        step = TrainStep(new_model(), SETTINGS, total_steps=15)
        step.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
        return step

    step = step_with_scaler()
    for _ in range(6):
        step(torch.randn(BATCH, 3, 16, 16), torch.zeros(BATCH, dtype=torch.int64))
    grown = step.scaler.state_dict()
    assert (grown["scale"], grown["_growth_tracker"]) == (128.0, 1)  # three updates
    save_checkpoint(tmp_path / "a.pt", step, RunProgress.start_of(0, "cpu"), updates_per_epoch=5, loader={})
    resumed = step_with_scaler()
    load_checkpoint(tmp_path / "a.pt", resumed, updates_per_epoch=5)
    assert resumed.scaler.state_dict() == grown


class Bomb:
    """Runs code when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return self.path.touch, ()


def test_invalid_checkpoints_are_refused_without_running_code(photos, saved, tmp_path):
    content, known = saved.read_bytes(), torch.load(saved, weights_only=True)
    weight = content.index(known["model"]["5.weight"].numpy().tobytes())
    flipped = content[:weight] + bytes([content[weight] ^ 1]) + content[weight + 1 :]
    damaged = (content[: len(content) // 2], b"", b"nonsense" * 99, flipped)
    foreign = ({"version": 1}, {"version": 1, "settings": [1, 2]}, {"version": torch.ones(2)}, [1, 2], "words")
    parts = ({"totals": torch.zeros(3)}, {"epoch": "1"}, {"updates": None}, {"loader": 3}, {"random": torch.zeros(2)})
    groups = [{k: v for k, v in group.items() if k != "momentum"} for group in known["optimizer"]["param_groups"]]
    parts += ({"optimizer": {**known["optimizer"], "param_groups": groups}},)  # from another version of the optimiser
    bomb = {"version": 1, "model": Bomb(tmp_path / "exploded")}
    for number, found in enumerate([*damaged, *foreign, *({**known, **part} for part in parts), bomb]):
        file = tmp_path / f"{number}.pt"
        file.write_bytes(found) if isinstance(found, bytes) else torch.save(found, file)
        words = "cannot be read" if found is bomb or isinstance(found, bytes) else file.name
        with pytest.raises(LoaderError, match=rf"E-STATE.*{words}"):
            run(photos, validate=False, file=file, resume=True)
    assert not (tmp_path / "exploded").exists()


def test_a_checkpoint_that_is_a_link_stays_a_link(photos, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run.pt").symlink_to("disk/real.pt")
    for _ in range(2):  # its target is created, then replaced
        run(photos, validate=False, file=tmp_path / "run.pt", stop_after=1)
        assert (tmp_path / "run.pt").is_symlink()
        assert [path.name for path in (tmp_path / "disk").iterdir()] == ["real.pt"]
    report, _ = run(photos, validate=False, file=tmp_path / "run.pt", resume=True)
    assert report.epochs[0].steps == 8


def test_other_images_are_refused_unless_no_strict(photos, tmp_path):
    file, others = tmp_path / "run.pt", write_folder(tmp_path / "others", 12)
    run(photos, file=file, stop_after=3)

    def resume(pipeline, judged, size=16, **plan):
        with (
            create_loader(photos, pipeline=pipeline, batch_size=BATCH, workers=0) as loader,
            create_loader(judged, pipeline=imagenet_eval(size), batch_size=BATCH + 1, workers=0) as judge,
        ):
            plan = CheckpointPlan(file=file, resume=True, stop_after=1, **plan)
            return train(new_model(), loader, SETTINGS, validation=judge, checkpoint=plan)

    for arguments, words in [
        ((imagenet_train(16, flip=0.0), photos), "flip=0.5, this loader has 0.0"),
        ((imagenet_train(16), others), "validated on other images: samples was 40 and is 12"),
        ((imagenet_train(16), photos, 17), "validated on other images: size was [16, 16] and is [17, 17]"),
    ]:
        before = file.read_bytes()
        with pytest.raises(LoaderError, match=r"E-STATE.*no-strict") as caught:
            resume(*arguments)
        assert words in caught.value.cause
        assert not resume(*arguments, strict=False).finished
        file.write_bytes(before)
    assert not resume(imagenet_train(16), photos).finished


def test_a_loader_without_a_state_cannot_be_saved(tmp_path):
    batches = [(torch.zeros(2, 3, 16, 16), torch.zeros(2, dtype=torch.int64))]
    with pytest.raises(ValueError, match="state_dict"):
        train(new_model(), batches, SETTINGS, checkpoint=CheckpointPlan(file=tmp_path / "a"))


RANKS = """
import dataclasses, json, os, shutil, signal, sys
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn
from penstock.bench.train.step.technique_settings import CheckpointPlan
from penstock.bench.train.stop_signals import SignalExit
from penstock.bench.train.loop import train
from penstock.bench.train.step.settings import TrainSettings
from penstock.bench.train.step.train_step import TrainStep
from penstock.loaders import create_loader
from penstock.pipelines import imagenet_train
from penstock.pipelines.errors import LoaderError

rank, world, store, out, photos = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:6]
runs = json.loads(sys.argv[6])
torch.set_num_threads(1)
if world > 1:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)

class Model(nn.Module):  # without batch norm, which has separate statistics per rank
    def __init__(self, term_at):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 49, 3))
        self.term_at, self.batches = term_at, 0

    def forward(self, images):
        self.batches += 1
        if self.batches == self.term_at and rank == world - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.net(images)

results, ledgers = [], []
for name, batch_size, accumulate, term_at, copy_of in runs:
    if copy_of:
        shutil.copy(copy_of, name.format(rank=rank))
    settings = TrainSettings(epochs=2, lr=0.02, accumulate=accumulate)
    plan = CheckpointPlan(file=Path(name.format(rank=rank)), resume=True)
    data = {"pipeline": imagenet_train(16), "on_bad_sample": "replace", "workers": 0}
    with create_loader(photos, batch_size=batch_size, **data) as loader:
        try:
            report = train(Model(term_at), loader, settings, checkpoint=plan)
            ledgers.append([epoch.ledger for epoch in report.epochs])
            results.append([(epoch.epoch, epoch.loss, epoch.images) for epoch in report.epochs])
        except SignalExit as error:
            results.append(error.note)
        except LoaderError as error:
            results.append(error.line())

# How often ranks exchange gradients: once an update, however many batches it has.
if world > 1:
    step = TrainStep(Model(0), TrainSettings(accumulate=3))
    exchanged = []
    def hook(state, bucket):
        exchanged.append(1)
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0] / world)
    step.parallel.register_comm_hook(None, hook)
    counts = []
    generator = torch.Generator().manual_seed(rank)
    for number in range(6):
        # Uneven padding: the mean is over the samples of both ranks, and both make the same update.
        labels = torch.tensor([0, 1, -1 if rank else 2, -1 if rank else 0])
        step(torch.randn(4, 3, 16, 16, generator=generator), labels)
        counts.append(len(exchanged))
    weights = [p.detach().double().sum().item() for p in step.module.parameters()]
    results.append([counts, weights])
Path(f"{out}.{rank}.json").write_text(json.dumps([results, ledgers]))
os._exit(0)  # gloo's threads may abort the interpreter's shutdown: see test_distributed.py
"""


def run_on(commands, folder, photos, world, runs):
    """Do `runs` one after another on gloo ranks; return their reports, and the ledgers of finished runs.

    Each is (checkpoint, batch size, accumulate, batch at which SIGTERM arrives, initial checkpoint).
    """
    found = run_ranks(commands, RANKS, folder, world, str(photos), json.dumps(runs))
    return [results for results, _ in found], [ledgers for _, ledgers in found]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, commands):
    """Runs on two ranks, then on one.

    On two ranks: an uninterrupted run; one in which the second rank gets SIGTERM in the epoch's fourth step; one that
    cannot resume because only the first rank sees the file; one that resumes. Two of the photos are truncated. Returns
    the results of two ranks, those of one, and the ledgers of both.
    """
    folder = tmp_path_factory.mktemp("ranks")
    photos = write_folder(folder / "photos", NUM_PHOTOS)
    for path in (photos / "class0" / "0003.jpg", photos / "class1" / "0022.jpg"):
        path.write_bytes(path.read_bytes()[:200])
    whole, stopped, copy, of_rank, again = (
        str(folder / name) for name in ("whole", "stopped", "copy", "file.{rank}", "again.{rank}")
    )
    (folder / "file.0").symlink_to("stopped")
    runs = [(whole, 4, 1, 0, ""), (stopped, 4, 1, 4, ""), (of_rank, 4, 1, 0, ""), (again, 4, 1, 0, stopped)]
    two, ledgers = run_on(commands, folder, photos, 2, runs)
    [one], [of_one] = run_on(commands, folder, photos, 1, [(copy, 8, 1, 0, stopped), (stopped, 4, 2, 0, "")])
    return two, one, [*ledgers, of_one]


@pytest.mark.slow
def test_sigterm_to_one_rank_stops_all_at_the_same_update(ranks):
    two, _, _ = ranks
    notes = [rank[1] for rank in two]
    assert notes[0] == notes[1]
    assert "after update 5 of epoch 1" in notes[0]  # it came in the fourth; they agree one later


def test_ranks_that_see_different_files_are_refused(ranks):
    two, _, _ = ranks
    for rank in two:
        assert rank[2].startswith("LoaderError[E-STATE]")
        assert "(0: epoch 1, update 5, 1: epoch 1, update 0)" in rank[2]


@pytest.mark.parametrize("way", [0, 1], ids=["a batch twice as large", "two batches an update"])
def test_two_ranks_resume_with_one(ranks, way):
    two, one, _ = ranks
    assert two[0][0] == two[1][0]
    for resumed, expected in zip(one[way], two[0][0], strict=True):
        assert resumed[0] == expected[0]
        assert resumed[1] == pytest.approx(expected[1], rel=1e-4)
        assert resumed[2] == expected[2] == NUM_PHOTOS


def test_two_ranks_resume_with_two(ranks):
    two, _, _ = ranks
    assert two[0][3] == two[1][3] == two[0][0]


def test_the_ledger_of_all_ranks_resumes_too(ranks):
    (whole, resumed), other_rank, of_one = ranks[2]
    assert other_rank == [whole, resumed]
    for epochs in (whole, resumed, *of_one):
        for number, ledger in enumerate(epochs):
            assert (ledger["epoch"], ledger["planned"], ledger["replaced"]) == (number, NUM_PHOTOS, 2)
            assert sorted(line["path"][-8:] for line in ledger["bad"]) == ["0003.jpg", "0022.jpg"]


def test_ranks_exchange_gradients_once_per_update_and_agree(ranks):
    two, _, _ = ranks
    for rank in two:
        counts, _ = rank[-1]
        buckets = counts[2]
        assert counts == [0, 0, buckets, buckets, buckets, 2 * buckets]
        assert buckets > 0
    assert two[0][-1][1] == two[1][-1][1]
