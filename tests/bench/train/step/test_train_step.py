"""One training step, against plain PyTorch."""

import math
from contextlib import nullcontext

import pytest
import torch
from learnable_batch import learnable_batch, tiny_model
from torch import nn
from torch.nn.functional import cross_entropy

from penstock.bench.train.step import train_step as step_module
from penstock.bench.train.step.optimizers import sgd
from penstock.bench.train.step.schedules import cosine_with_warmup
from penstock.bench.train.step.settings import TrainSettings
from penstock.bench.train.step.train_step import TrainStep, class_loss, is_labelled, on_device


@pytest.mark.parametrize("targets", [torch.full((3,), -1), torch.zeros(3, 4)], ids=["labels", "soft"])
def test_a_batch_with_only_padding_gives_no_gradient(targets):
    logits = torch.randn(3, 4, requires_grad=True)
    loss = class_loss(logits, targets, label_smoothing=0.1)
    loss.backward()
    assert loss.item() == 0.0
    assert not logits.grad.any()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_soft_targets_count_as_in_torch(smoothing):
    logits = torch.randn(6, 4, requires_grad=True)
    targets = torch.rand(6, 4).softmax(1)
    targets[[2, 5]] = 0.0
    rows = [0, 1, 3, 4]
    expected = cross_entropy(logits[rows], targets[rows], label_smoothing=smoothing)
    loss = class_loss(logits, targets, label_smoothing=smoothing)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert not logits.grad[[2, 5]].any()
    assert logits.grad[rows].any(1).all()
    assert is_labelled(targets).tolist() == [True, True, False, True, True, False]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_targets_of_one_class_give_the_loss_of_labels(smoothing):
    logits, labels = torch.randn(6, 4), torch.tensor([0, 1, -1, 2, 3, -1])
    targets = nn.functional.one_hot(labels.clamp(min=0), 4).float() * (labels >= 0)[:, None]
    torch.testing.assert_close(
        class_loss(logits, targets, label_smoothing=smoothing), class_loss(logits, labels, label_smoothing=smoothing)
    )
    assert is_labelled(targets).tolist() == is_labelled(labels).tolist()


def test_the_loss_is_computed_in_float32():
    assert class_loss(torch.randn(2, 4, dtype=torch.bfloat16), torch.tensor([0, 1])).dtype == torch.float32


def test_on_device_prepares_images():
    batch = (torch.randn(2, 3, 8, 8, dtype=torch.float16), torch.tensor([0, 1]), torch.tensor([7, 9]))
    [(images, labels)] = on_device([batch], TrainSettings(channels_last=True))
    assert images.dtype == torch.float32
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels is batch[1]
    [(images, _)] = on_device([batch], TrainSettings(amp="bf16", channels_last=False))
    assert images.dtype == torch.float16  # autocast casts it


def test_integer_images_are_refused():
    with pytest.raises(TypeError, match=r"torch\.uint8"):
        next(on_device([(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), torch.tensor([0]))], TrainSettings()))


def test_step_is_nesterov_sgd_with_decay_of_weights_only():
    settings = TrainSettings(lr=0.1, weight_decay=0.01, schedule="constant", channels_last=False)
    step = TrainStep(tiny_model(), settings)
    reference = tiny_model()
    plain = torch.optim.SGD(
        [{"params": [p], "weight_decay": 0.01 if p.ndim > 1 else 0.0} for p in reference.parameters()],
        lr=0.1,
        momentum=0.9,
        nesterov=True,
    )
    for seed in range(3):
        images, labels = learnable_batch(seed=seed)
        loss = cross_entropy(reference(images), labels)
        plain.zero_grad()
        loss.backward()
        plain.step()
        torch.testing.assert_close(step(images, labels), loss.detach())
    for own, other in zip(step.module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(own, other)


def overflow_then_step(device):
    """A parameter before and after two steps of `sgd` with gradient one; the first step overflows."""
    model = nn.Linear(4, 4, bias=False, device=device)
    before = model.weight.detach().clone()
    optimizer = sgd(model, TrainSettings(weight_decay=0.0), lr=0.1)
    for found_inf in (1.0, 0.0):
        model.weight.grad = torch.full_like(model.weight, math.inf if found_inf else 1.0)
        # GradScaler's argument for an optimiser that handles overflow itself.
        optimizer.found_inf = torch.tensor(found_inf, device=device)
        optimizer.grad_scale = torch.tensor(1.0, device=device)
        optimizer.step()
    return before, model.weight.detach()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_first_step_that_overflows_changes_nothing(device, monkeypatch):
    # Memory that the optimiser leaves uninitialised must be visible, not zero by chance.
    monkeypatch.setattr(torch, "empty_like", lambda like, **_: torch.full_like(like, math.nan))
    before, after = overflow_then_step(device)
    torch.testing.assert_close(after, before - 0.1 * 1.9)  # one Nesterov step from rest: lr * (1 + momentum) * gradient


def test_bf16_agrees_with_float32_within_its_noise():
    losses = {}
    for amp in ("off", "bf16"):
        step = TrainStep(tiny_model(), TrainSettings(lr=0.05, amp=amp, schedule="constant"))
        losses[amp] = torch.stack([step(*learnable_batch(seed=seed)) for seed in range(30)])
        assert all(p.dtype == torch.float32 for p in step.module.parameters())
    assert losses["off"][-5:].mean() < 0.6 * losses["off"][:5].mean()
    # bfloat16 keeps 8 bits: a relative error of 2^-9 per rounding, here over a few layers.
    torch.testing.assert_close(losses["bf16"], losses["off"], rtol=0.05, atol=0.02)
    assert not torch.equal(losses["bf16"], losses["off"])


@pytest.mark.parametrize(("warmup", "total"), [(0.25, 8), (0.0, 5), (0.9, 4), (0.5, 2), (0.3, 1)])
def test_the_schedule_rises_to_lr_and_falls_towards_zero(warmup, total):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.4)
    schedule = cosine_with_warmup(optimizer, warmup=warmup, total_steps=total)
    rates = []
    for _ in range(total):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    peak = max(1, round(warmup * total)) - 1
    assert rates[peak] == pytest.approx(0.4)
    assert rates[: peak + 1] == pytest.approx([0.4 * (k + 1) / (peak + 1) for k in range(peak + 1)])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert all(rate > 0 for rate in rates)
    assert schedule.get_last_lr()[0] == pytest.approx(0.0)


@pytest.mark.parametrize(("schedule", "total_steps"), [("cosine", None), ("constant", 10)])
def test_without_a_length_or_a_schedule_lr_is_constant(schedule, total_steps):
    step = TrainStep(tiny_model(), TrainSettings(schedule=schedule, lr=0.03), total_steps=total_steps)
    step(*learnable_batch())
    assert step.schedule is None
    assert {group["lr"] for group in step.optimizer.param_groups} == {0.03}


@pytest.mark.parametrize("targets", ["labels", "soft"])
@pytest.mark.parametrize("optimizer", ["sgd", "sgd one by one", "adamw"])
def test_a_step_reads_no_value_of_the_device(optimizer, targets, monkeypatch):
    """On the meta device, tensors have no values: reading one, or the size of a mask, raises."""
    monkeypatch.setattr(step_module, "autocast", lambda settings: nullcontext())  # which knows no such device
    kernel = "loop" if "one by one" in optimizer else "foreach"
    given = {"accumulate": 2, "clip_norm": 1.0, "label_smoothing": 0.1, "kernel": kernel}
    settings = TrainSettings(optimizer=optimizer.partition(" ")[0], **given)
    object.__setattr__(settings, "device", "meta")  # which users may not name
    step = TrainStep(tiny_model(), settings, total_steps=4)
    images = torch.empty(8, 3, 6, 6, device="meta")
    labels = torch.zeros(8, dtype=torch.int64) if targets == "labels" else torch.zeros(8, 4)
    losses = [step(images, labels.to("meta"), last=batch == 4) for batch in range(5)]
    assert step.updates == 3
    assert all(loss.is_meta and loss.shape == () for loss in losses)
