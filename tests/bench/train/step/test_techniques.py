"""Techniques that must not change the result: accumulation, clipping, checkpointing, in-place work, switches."""

import copy
import dataclasses
import gc

import pytest
import torch
from learnable_batch import learnable_batch
from one_thread import one_thread  # noqa: F401
from torch import nn

from penstock.bench.train.evaluate import evaluate
from penstock.bench.train.step.activation_checkpoints import CheckpointedSequential, checkpoint_activations
from penstock.bench.train.step.models import MODELS, build_model
from penstock.bench.train.step.settings import TrainSettings
from penstock.bench.train.step.torch_switches import torch_switches
from penstock.bench.train.step.train_step import TrainStep
from penstock.pipelines.errors import LoaderError

SETTINGS = TrainSettings(lr=0.1, schedule="constant", channels_last=False)


def norm_free_model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 25, 4))


def weights_of(model):
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("padding", [(), (1, 8, 9, 10, 11)])
def test_accumulated_batches_equal_one_large_batch(optimizer, padding):
    settings = dataclasses.replace(SETTINGS, optimizer=optimizer)
    large, small = TrainStep(norm_free_model(), settings), None
    small = TrainStep(norm_free_model(), dataclasses.replace(settings, accumulate=3))
    for seed in range(3):
        images, labels = learnable_batch(12, seed=seed, padding=padding)  # with padding: 3, 4 and 0 labelled samples
        large(images, labels)
        before = [p.clone() for p in weights_of(small.module)]
        for number, part in enumerate(zip(images.split(4), labels.split(4), strict=True)):
            small(*part)
            unchanged = all(torch.equal(a, b) for a, b in zip(before, weights_of(small.module), strict=True))
            assert unchanged is (number < 2)
    assert small.updates == large.updates == 3
    torch.testing.assert_close(weights_of(small.module), weights_of(large.module))


def test_last_batches_of_an_epoch_make_an_update():
    large, small = TrainStep(norm_free_model(), SETTINGS), TrainStep(norm_free_model(), SETTINGS)
    small = TrainStep(norm_free_model(), dataclasses.replace(SETTINGS, accumulate=4))
    images, labels = learnable_batch(8)
    large(images, labels)
    small(images[:4], labels[:4])
    small(images[4:], labels[4:], last=True)
    assert small.updates == 1
    torch.testing.assert_close(weights_of(small.module), weights_of(large.module))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_clipping_bounds_the_norm_of_the_gradient(accumulate, monkeypatch):
    settings = dataclasses.replace(SETTINGS, accumulate=accumulate, weight_decay=0.0)
    norms = {}
    for limit in (None, 0.05, 1e6):
        step = TrainStep(norm_free_model(), dataclasses.replace(settings, clip_norm=limit))
        seen = []
        update = step.optimizer.step

        def watching(*args, seen=seen, step=step, update=update, **kwargs):
            seen.append(torch.stack([p.grad.norm() for p in step.module.parameters()]).norm().item())
            return update(*args, **kwargs)

        monkeypatch.setattr(step.optimizer, "step", watching)
        for part in range(accumulate):
            step(*learnable_batch(8, seed=part))
        norms[limit] = seen
    assert norms[1e6] == pytest.approx(norms[None])
    assert norms[None][0] > 0.5
    assert norms[0.05] == [pytest.approx(0.05, rel=1e-3)]


@pytest.mark.gpu
def test_clipping_sees_unscaled_gradients_on_cuda():
    settings = dataclasses.replace(SETTINGS, device="cuda", lr=1.0, momentum=0.5, weight_decay=0.0, clip_norm=0.05)
    moved = {}
    for amp in ("off", "fp16"):
        step = TrainStep(norm_free_model(), dataclasses.replace(settings, amp=amp))
        before = [p.clone() for p in weights_of(step.module)]
        images, labels = learnable_batch(8)
        for _ in range(1 if amp == "off" else 3):  # the first of fp16 may overflow
            step(images.cuda(), labels.cuda())
            moves = [a - b for a, b in zip(weights_of(step.module), before, strict=True)]
            moved[amp] = torch.stack([m.norm() for m in moves]).norm().item()
            if moved[amp] > 0:
                break
    assert moved["fp16"] == pytest.approx(moved["off"], rel=0.05)


def grown(name, size=2):
    """A bundled float64 model with non-zero branches, and a batch for it."""
    model = build_model(TrainSettings(model=name), 5).double().train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.constant_(module.weight, 0.7)
    generator = torch.Generator().manual_seed(1)
    return model, torch.randn(size, 3, 32, 32, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize(
    ("name", "mode", "segments"),
    [("resnet18", "blocks", 2), ("resnet18", "segments", 3), ("resnet18", "segments", 99), ("resnet50", "blocks", 2)],
)
def test_checkpointing_keeps_gradients_and_statistics(name, mode, segments):
    model, images = grown(name)
    thrifty = copy.deepcopy(model)
    checkpoint_activations(thrifty, mode, segments)
    runs = []
    for net in (model, thrifty):
        passes = []
        hook = net.blocks[1].register_forward_pre_hook(lambda *_, passes=passes: passes.append(1))
        net(images).square().sum().backward()
        hook.remove()
        runs.append(len(passes))
    assert runs == [1, 2]  # recomputed once, not twice
    for own, other in zip(thrifty.parameters(), model.parameters(), strict=True):
        assert torch.equal(own.grad, other.grad)
    for own, other in zip(thrifty.buffers(), model.buffers(), strict=True):
        assert torch.equal(own, other)


def test_evaluation_is_not_checkpointed():
    part = CheckpointedSequential(nn.Linear(2, 2))
    part.segments = 1
    calls = []
    part[0].register_forward_hook(lambda *_: calls.append(1))
    part.eval()(torch.ones(1, 2)).sum().backward()
    assert len(calls) == 1


def test_checkpointing_of_other_models():
    class Timmlike(nn.Module):
        enabled = False

        def set_grad_checkpointing(self, enable):
            self.enabled = enable

    model = Timmlike()
    checkpoint_activations(model, "off", 2)
    assert not model.enabled
    checkpoint_activations(model, "blocks", 2)
    assert model.enabled
    with pytest.raises(ValueError, match=r"checkpointing='segments'.*Timmlike"):
        checkpoint_activations(model, "segments", 2)
    with pytest.raises(ValueError, match=r"checkpointing='blocks'.*Linear"):
        checkpoint_activations(nn.Linear(1, 1), "blocks", 2)


@pytest.mark.parametrize("name", MODELS)
def test_in_place_activations_can_be_switched_off(name):
    model, images = grown(name)
    apart = build_model(TrainSettings(model=name, inplace=False), 5).double().train()
    apart.load_state_dict(model.state_dict())
    assert not any(m.inplace for m in apart.modules() if isinstance(m, nn.ReLU))
    for net in (model, apart):
        net(images).square().sum().backward()
    for own, other in zip(model.parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)


def test_conv_bias_adds_a_parameter_for_each_channel():
    model, without = build_model(TrainSettings(conv_bias=True), 5), build_model(TrainSettings(), 5)
    channels = sum(m.out_channels for m in model.modules() if isinstance(m, nn.Conv2d))
    numbers = [sum(p.numel() for p in each.parameters()) for each in (model, without)]
    assert numbers[0] - numbers[1] == channels == 4800


def test_switches_are_set_for_a_run_and_restored():
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul

    def state():
        return cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32, torch.is_anomaly_enabled()

    before = state()
    for flag in (True, False):
        settings = dataclasses.replace(SETTINGS, cudnn_benchmark=flag, tf32=flag, anomaly=flag)
        with torch_switches(settings):
            assert state() == (flag,) * 4
        assert state() == before


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_broken_compiler_is_one_line(monkeypatch):
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", ("no-such-compiler",))
    monkeypatch.setattr(config, "force_disable_caches", True)
    step = TrainStep(nn.Sequential(nn.Flatten(), nn.Linear(432, 4)), dataclasses.replace(SETTINGS, compile="default"))
    with pytest.raises(LoaderError, match=r"E-DEPENDENCY.*torch.compile.*compile='off'") as caught:
        step(*learnable_batch(4))
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_step_learns_the_same(monkeypatch):
    """Traced with its backward pass and run by torch's kernels: inductor's take 14 s to build."""
    from torch._dynamo.utils import counters

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, mode: real(model, backend="aot_eager"))
    plain, fast = (
        TrainStep(
            nn.Sequential(norm_free_model()[0], nn.BatchNorm2d(8), *norm_free_model()[1:]),
            dataclasses.replace(SETTINGS, compile=mode),
        )
        for mode in ("off", "default")
    )
    counters.clear()
    for seed in range(4):
        images, labels = learnable_batch(8, seed=seed)
        torch.testing.assert_close(fast(images, labels), plain(images, labels))
    assert counters["stats"]["unique_graphs"] == 1
    assert counters["aot_autograd"]["ok"] == 1
    torch.testing.assert_close(fast.module.state_dict(), plain.module.state_dict())


def tensors_alive():
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def test_no_tensor_and_no_graph_is_kept():
    step = TrainStep(norm_free_model(), dataclasses.replace(SETTINGS, accumulate=2))
    batches = [learnable_batch(4, seed=seed) for seed in range(10)]
    alive = []
    losses = []
    for _ in range(3):
        for images, labels in batches:
            losses.append(step(images, labels))
        evaluate(step.module, batches, SETTINGS)
        assert all(loss.grad_fn is None for loss in losses)
        losses.clear()
        alive.append(tensors_alive())
    assert alive[0] == alive[1] == alive[2]
