"""Settings of a training run that cannot work."""

import dataclasses

import pytest
import torch

from penstock.bench.train_settings import TrainSettings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device", "gpu"),
        ("device", "meta"),
        ("device", "cuda:999"),
        ("epochs", 0),
        ("lr", 0.0),
        ("lr", float("nan")),
        ("momentum", 1.0),
        ("momentum", 0.0),
        ("weight_decay", -1e-4),
        ("schedule", "linear"),
        ("warmup", 1.0),
        ("label_smoothing", 1.0),
        ("amp", "fp8"),
        ("amp", "fp16"),
    ],
)
def test_impossible_settings_raise_and_name_themselves(field, value):
    with pytest.raises(ValueError, match=field):
        TrainSettings(**{field: value})


def test_settings_are_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainSettings().lr = 1.0
    with pytest.raises(TypeError):
        TrainSettings("resnet18")


def test_memory_format():
    assert TrainSettings(channels_last=True).memory_format is torch.channels_last
    assert TrainSettings(channels_last=False).memory_format is torch.contiguous_format
