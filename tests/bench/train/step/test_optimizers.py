"""Optimisers and schedules: torch's by name, and the arguments of timm's."""

import dataclasses
import math
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from penstock.bench.train.step.optimizers import make_optimizer
from penstock.bench.train.step.schedules import make_schedule
from penstock.bench.train.step.settings import TrainSettings
from penstock.bench.train.step.technique_settings import OptimizerSettings, ScheduleSettings
from penstock.pipelines.errors import LoaderError

STEPS = 7


def small_model():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()


def gradients(model, step):
    generator = torch.Generator().manual_seed(step)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)


def trained(settings):
    """Weights after each of a few updates with gradients that depend on the step."""
    model = small_model()
    optimizer = make_optimizer(model, settings)
    states = []
    for step in range(STEPS):
        gradients(model, step)
        optimizer.step()
        states.append([p.detach().clone() for p in model.parameters()])
    return states


class GivenOptimizer(torch.optim.SGD):
    """Records the arguments of timm's optimisers."""

    def __init__(self, groups, lr, **options):
        super().__init__(groups, lr=lr)
        self.options = options


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lars", {"momentum": 0.8, "trust_coeff": 0.02, "eps": 0.0}),
        ("lamb", {"betas": (0.7, 0.99), "eps": 1e-5, "max_grad_norm": None}),
    ],
)
def test_lars_and_lamb_come_from_timm(name, options, monkeypatch):
    """Matrices are adapted whether they decay or not; norms and biases, which do not decay, never."""
    stub = SimpleNamespace(**{name.capitalize(): GivenOptimizer})
    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(optim=stub))
    monkeypatch.setitem(sys.modules, "timm.optim", stub)
    given = {"momentum": 0.8, "trust": 0.02, "beta1": 0.7, "beta2": 0.99, "eps": 1e-5, "weight_decay": 0.1}
    made = make_optimizer(small_model(), OptimizerSettings(optimizer=name, lr=0.3, **given))
    assert made.options == options
    assert [(g["lr"], g["weight_decay"], g["always_adapt"]) for g in made.param_groups] == [
        (0.3, 0.1, True),
        (0.3, 0.0, False),
    ]
    assert [{p.ndim for p in group["params"]} for group in made.param_groups] == [{2}, {1}]


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_lars_and_lamb_without_timm_are_one_clear_error(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm.optim", None)
    with pytest.raises(LoaderError, match=rf"E-DEPENDENCY.*optimizer='{name}'.*pip install timm"):
        make_optimizer(small_model(), OptimizerSettings(optimizer=name))


def test_adamw_decays_only_matrices():
    settings = OptimizerSettings(optimizer="adamw", lr=0.01, weight_decay=0.1)
    model = small_model()
    plain = torch.optim.AdamW(
        [{"params": [p], "weight_decay": 0.1 if p.ndim > 1 else 0.0} for p in model.parameters()], lr=0.01
    )
    for step, state in enumerate(trained(settings)):
        gradients(model, step)
        plain.step()
        torch.testing.assert_close(state, [p.detach() for p in model.parameters()])


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_kernels_agree(name):
    runs = [trained(OptimizerSettings(optimizer=name, kernel=kernel)) for kernel in ("fused", "foreach", "loop")]
    assert make_optimizer(small_model(), OptimizerSettings(optimizer=name)).defaults["fused"]
    torch.testing.assert_close(runs[0], runs[2])
    torch.testing.assert_close(runs[1], runs[2])


def rates(settings, total=40, lr=0.4):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)
    schedule = make_schedule(optimizer, settings, total_updates=total)
    found = []
    for _ in range(total):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_onecycle_rises_for_warmup_and_ends_low():
    found = rates(ScheduleSettings(schedule="onecycle", warmup=0.25))
    assert max(found) == pytest.approx(0.4)
    assert found.index(max(found)) == 9
    assert found[0] == pytest.approx(0.4 / 25)
    assert found[-1] < 1e-4


@pytest.mark.parametrize("total", [3, 4, 5])
@pytest.mark.parametrize("warmup", [0.01, 0.25, 0.99])
def test_onecycle_of_a_handful_of_updates(total, warmup):
    found = rates(ScheduleSettings(schedule="onecycle", warmup=warmup), total=total)
    assert 0.1 < max(found) <= 0.4
    with pytest.raises(ValueError, match="at least 3 updates"):
        rates(ScheduleSettings(schedule="onecycle"), total=2)


def test_cyclic_has_the_requested_number_of_cycles():
    found = rates(ScheduleSettings(schedule="cyclic", cycles=4))
    assert min(found) == pytest.approx(0.04)
    peaks = [step for step, rate in enumerate(found) if rate == pytest.approx(0.4)]
    assert peaks == [5, 15, 25, 35]


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_the_learning_rate_scales_with_the_global_batch(scaling, factor):
    settings = TrainSettings(lr=0.1, lr_scaling=scaling, batch_size=64, accumulate=4, base_batch=128)
    assert settings.peak_lr(world_size=2) == pytest.approx(0.1 * factor)
    alone = dataclasses.replace(settings, accumulate=1)
    assert alone.peak_lr() == pytest.approx(0.1 * {"none": 1, "linear": 0.5, "sqrt": math.sqrt(0.5)}[scaling])
