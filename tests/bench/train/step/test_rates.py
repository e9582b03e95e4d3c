"""Rates of loader, model and both: the work that is run, not its speed."""

import pytest
import torch
from torch import nn

from penstock.bench.record.loader_rate import loader_rate
from penstock.bench.train.step.rates import random_batch, resident_batch_rate, training_times
from penstock.bench.train.step.settings import TrainSettings

SETTINGS = TrainSettings()


class CountingLoader:
    def __init__(self, steps):
        self.steps = steps
        self.epochs_begun = self.epochs_left = self.served = 0

    def __iter__(self):
        self.epochs_begun += 1
        try:
            for _ in range(self.steps):
                self.served += 1
                yield torch.randn(4, 3, 8, 8), torch.randint(5, (4,)), torch.arange(4)
        finally:
            self.epochs_left += 1


class CountingModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3 * 8 * 8, 5)
        self.images = 0

    def forward(self, images):
        self.images += len(images)
        assert images.is_contiguous(memory_format=torch.channels_last)
        return self.head(images.flatten(1))


def test_loader_rate_runs_over_epochs_and_closes_the_last_one():
    loader = CountingLoader(3)
    rate = loader_rate(loader, seconds=0.05)
    assert rate.images > 0
    assert rate.images % 4 == 0
    assert 4 * loader.served > rate.images  # the warm-up
    assert loader.epochs_begun == loader.epochs_left > 1


def test_an_empty_loader_is_an_error():
    with pytest.raises(ValueError, match="empty"):
        loader_rate(CountingLoader(0), seconds=0.05)
    with pytest.raises(ValueError, match="empty"):
        training_times(CountingModel(), SETTINGS, loader=CountingLoader(0), seconds=0.05)


@pytest.mark.parametrize("settings", [SETTINGS, TrainSettings(amp="bf16"), TrainSettings(accumulate=3)])
def test_resident_batch_rate_trains_the_model(settings):
    model = CountingModel()
    weights = model.head.weight.detach().clone()
    images, labels = random_batch((2, 3, 8, 8), 5, 0)
    rate = resident_batch_rate(model, settings, batch=(images.to(torch.bfloat16), labels), seconds=0.05)
    assert 0 < rate.images < model.images
    assert rate.images % (2 * settings.accumulate) == 0  # whole updates
    assert not torch.equal(model.head.weight, weights)


def test_training_times_cover_loader_and_model():
    model, loader = CountingModel(), CountingLoader(3)
    times = training_times(model, SETTINGS, loader=loader, seconds=0.05)
    assert times.steps >= 3
    assert times.images_per_s.images == 4 * times.steps < model.images
    assert 0 < times.wait_share < 1
    assert loader.epochs_begun == loader.epochs_left
