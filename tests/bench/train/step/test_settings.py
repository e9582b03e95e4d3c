"""Invalid settings of a training run."""

import pytest

from penstock.bench.train.step.settings import TrainSettings

IMPOSSIBLE = {
    "device": ("gpu", "meta", "cuda:999"),
    "epochs": (0,),
    "lr": (0.0, float("nan")),
    "momentum": (1.0, 0.0),
    "weight_decay": (-1e-4,),
    "schedule": ("linear",),
    "warmup": (1.0,),
    "label_smoothing": (1.0,),
    "amp": ("fp8", "fp16"),
    "optimizer": ("adam",),
    "lr_scaling": ("cubic", "linear"),  # of which batch?
    "base_batch": (0,),
    "batch_size": (0,),
    "beta1": (1.0,),
    "beta2": (-0.1,),
    "eps": (0.0,),
    "trust": (0.0,),
    "kernel": ("slow",),
    "cycles": (0,),
    "compile": ("fast", "reduce-overhead"),  # the latter without a GPU
    "accumulate": (0,),
    "clip_norm": (0.0,),
    "checkpointing": ("all",),
    "segments": (0,),
}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        *(({field: value}, field) for field, values in IMPOSSIBLE.items() for value in values),
        ({"schedule": "onecycle", "warmup": 0.0}, "warmup must be above 0"),
        ({"compile": "default", "checkpointing": "blocks"}, "exclude each other"),
    ],
)
def test_invalid_settings_raise_and_are_named(fields, words):
    with pytest.raises(ValueError, match=words):
        TrainSettings(**fields)
