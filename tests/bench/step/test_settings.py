"""Settings of a training run that cannot work."""

import pytest

from penstock.bench.step.settings import TrainSettings


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
        ("optimizer", "adam"),
        ("lr_scaling", "cubic"),
        ("lr_scaling", "linear"),  # of which batch?
        ("base_batch", 0),
        ("batch_size", 0),
        ("beta1", 1.0),
        ("beta2", -0.1),
        ("eps", 0.0),
        ("trust", 0.0),
        ("kernel", "slow"),
        ("cycles", 0),
        ("compile", "fast"),
        ("compile", "reduce-overhead"),  # without a GPU
        ("accumulate", 0),
        ("clip_norm", 0.0),
        ("checkpointing", "all"),
        ("segments", 0),
    ],
)
def test_impossible_settings_raise_and_name_themselves(field, value):
    with pytest.raises(ValueError, match=field):
        TrainSettings(**{field: value})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"schedule": "onecycle", "warmup": 0.0}, "warmup must be above 0"),
        ({"compile": "default", "checkpointing": "blocks"}, "exclude each other"),
    ],
)
def test_impossible_combinations_raise(fields, words):
    with pytest.raises(ValueError, match=words):
        TrainSettings(**fields)
