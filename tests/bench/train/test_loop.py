"""The training loop: it learns, reports exactly, is reproducible and never waits for the device."""

import dataclasses
import json

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from penstock.bench.train.loop import train
from penstock.bench.train.step.models import build_model
from penstock.bench.train.step.settings import TrainSettings


class PatternLoader:
    """Noisy images of four patterns, learnable within seconds; padded like the last batch of an evaluation."""

    def __init__(self, steps, *, batch_size=32, side=32, seed=0, padding=0):
        generator = torch.Generator().manual_seed(99)
        patterns = torch.randn(4, 3, side, side, generator=generator)
        generator.manual_seed(seed)
        self.labels = torch.randint(4, (steps * batch_size,), generator=generator)
        self.images = patterns[self.labels] + torch.randn(steps * batch_size, 3, side, side, generator=generator)
        if padding:
            self.labels[-padding:] = -1
        self.batch_size = batch_size
        self.epochs = []

    def __len__(self):
        return len(self.labels) // self.batch_size

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        yield from zip(self.images.split(self.batch_size), self.labels.split(self.batch_size), strict=True)


def tiny_model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(8 * 15 * 15, 4),
        )


SETTINGS = TrainSettings(epochs=2, lr=0.02)


@pytest.mark.parametrize(
    ("device", "amp"),
    [("cpu", "off"), *(pytest.param("cuda", amp, marks=pytest.mark.gpu) for amp in ("off", "bf16", "fp16"))],
)
def test_resnet18_learns(device, amp):
    settings = TrainSettings(epochs=3, lr=0.05, amp=amp, device=device)
    loader, validation = PatternLoader(8, side=16), PatternLoader(3, side=16, seed=1, padding=5)
    report = train(build_model(settings, 4), loader, settings, validation=validation)
    first, last = report.epochs[0], report.epochs[-1]
    assert last.loss < 0.3 * first.loss
    assert last.validation.accuracy > 0.9
    assert last.validation.images == 3 * 32 - 5


def test_the_report_is_complete_and_json():
    loader, seen = PatternLoader(6, padding=7), []
    validation = PatternLoader(2, seed=1)
    report = train(tiny_model(), loader, SETTINGS, validation=validation, on_epoch=seen.append)
    assert tuple(seen) == report.epochs
    assert loader.epochs == [0, 1]
    assert [epoch.steps for epoch in seen] == [6, 6]
    assert [epoch.images for epoch in seen] == [6 * 32 - 7] * 2
    assert [epoch.images_per_s.images for epoch in seen] == [3 * 32, 6 * 32]  # the first three steps were warm-up
    assert all(0 <= epoch.wait_share <= 1 and 0 < epoch.seconds <= report.seconds for epoch in seen)
    record = json.loads(json.dumps(dataclasses.asdict(report), allow_nan=False))
    assert record["settings"]["model"] == "resnet18"
    assert record["parameters"] == sum(p.numel() for p in tiny_model().parameters())
    assert record["epochs"][1]["validation"]["images"] == 64
    assert record["epochs"][1]["images_per_s"]["median"] > 0


def test_the_loss_reported_is_the_mean_over_labelled_samples():
    loader = PatternLoader(2, padding=20)
    settings = dataclasses.replace(SETTINGS, epochs=1, lr=1e-12)
    model = tiny_model().eval()  # TrainStep's modes do not matter here, so remove dropout and norm
    model[1], model[4] = nn.Identity(), nn.Identity()
    [epoch] = train(model, loader, settings).epochs
    logits, labelled = model(loader.images), loader.labels >= 0
    expected = nn.functional.cross_entropy(logits[labelled], loader.labels[labelled])
    assert epoch.loss == pytest.approx(expected.item(), rel=1e-4)


def test_a_run_depends_only_on_its_seed_and_restores_the_global_state():
    torch.manual_seed(3)
    expected_draw = torch.rand(2)
    torch.manual_seed(3)
    before = torch.backends.cudnn.benchmark
    runs = [train(tiny_model(), PatternLoader(4), dataclasses.replace(SETTINGS, seed=seed)) for seed in (1, 1, 2)]
    losses = [[epoch.loss for epoch in run.epochs] for run in runs]
    assert losses[0] == losses[1] != losses[2]  # dropout
    assert torch.equal(torch.rand(2), expected_draw)
    assert torch.backends.cudnn.benchmark is before


class ReadsOfTheDevice(TorchDispatchMode):
    """Counts operations that make the host wait for the device: each read of a value from a tensor."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_no_step_reads_a_value_back():
    counts = []
    for steps in (2, 12):
        loader, validation = PatternLoader(steps, batch_size=4), PatternLoader(steps, batch_size=4)
        with ReadsOfTheDevice() as reads:
            train(tiny_model(), loader, SETTINGS, validation=validation)
        counts.append(reads.count)
    assert counts[0] == counts[1] <= 2 * SETTINGS.epochs


class Unsynchronised:
    """A loader on the device; a synchronisation between its first and last batch is an error."""

    def __init__(self, loader):
        self.batches = [(images.cuda(), labels.cuda()) for images, labels in loader]

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        for step, batch in enumerate(self.batches):
            if step == 1:  # the first step allocates
                torch.cuda.set_sync_debug_mode("error")
            yield batch
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("amp", ["off", "bf16", "fp16"])
def test_no_step_synchronises_on_cuda(amp):
    settings = TrainSettings(epochs=2, amp=amp, device="cuda")
    loader, validation = Unsynchronised(PatternLoader(8)), Unsynchronised(PatternLoader(3, padding=5))
    probe = torch.ones(1, device="cuda")
    try:
        report = train(build_model(settings, 4), loader, settings, validation=validation)
        torch.cuda.set_sync_debug_mode("error")
        with pytest.raises(RuntimeError):
            probe.item()  # the mode catches the read of a loss
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(report.epochs) == 2


@pytest.mark.parametrize("loader", [PatternLoader(0), PatternLoader(2, padding=64)])
def test_nothing_to_train_on_is_an_error(loader):
    with pytest.raises(ValueError, match=r"empty|no labelled sample"):
        train(tiny_model(), loader, SETTINGS)


def test_a_loader_without_length_is_refused():
    with pytest.raises(ValueError, match="length"):
        train(tiny_model(), iter(PatternLoader(2)), SETTINGS)


def test_divergence_is_reported():
    loader = PatternLoader(2)
    loader.images[0, 0, 0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match="epoch 0 is nan"):
        train(tiny_model(), loader, SETTINGS)


def test_torch_loaders_work_and_their_sampler_gets_the_epoch():
    data = PatternLoader(4)
    dataset = torch.utils.data.TensorDataset(data.images, data.labels)
    sampler = torch.utils.data.DistributedSampler(dataset, num_replicas=1, rank=0)
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)
    report = train(tiny_model(), loader, SETTINGS, validation=loader)
    assert [epoch.images for epoch in report.epochs] == [128, 128]
    assert sampler.epoch == 1
