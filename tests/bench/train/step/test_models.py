"""The bundled ResNets against the paper, and timm by name."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from penstock.bench.train.step.models import MODELS, build_model
from penstock.bench.train.step.settings import TrainSettings
from penstock.pipelines.errors import LoaderError


@pytest.mark.parametrize(("name", "parameters"), [("resnet18", 11_689_512), ("resnet50", 25_557_032)])
def test_parameters_are_those_of_the_paper(name, parameters):
    with torch.device("meta"):
        model = MODELS[name]()
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize(("name", "small_inputs", "side"), [("resnet18", False, 2), ("resnet50", True, 4)])
def test_resolution_before_the_head(name, small_inputs, side):
    model = build_model(TrainSettings(model=name, small_inputs=small_inputs), 10).eval()
    with torch.inference_mode():
        features = model.blocks(model.stem(torch.zeros(1, 3, 64, 64)))
        logits = model(torch.zeros(1, 3, 64, 64))
    assert features.shape[2:] == (side, side)
    assert logits.shape == (1, 10)


def test_blocks_start_as_their_shortcut():
    model = MODELS["resnet18"](10).eval()
    block = model.blocks[0]
    features = torch.rand(1, 64, 8, 8)
    torch.testing.assert_close(block(features), features)
    nn.init.ones_(block.branch[-1][-1].weight)
    assert not torch.allclose(block(features), features)


def test_seed_fixes_the_weights():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, second, other = (build_model(TrainSettings(seed=seed), 4).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["head.2.weight"], other["head.2.weight"])


def test_missing_timm_is_one_clear_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(LoaderError, match=r"E-DEPENDENCY.*convnext_tiny.*pip install timm"):
        build_model(TrainSettings(model="convnext_tiny"), 10)


def test_timm_models_are_made_by_name(monkeypatch):
    made = {}

    def make(name, **arguments):
        made[name] = arguments
        return nn.Linear(1, arguments["num_classes"])

    timm = SimpleNamespace(
        is_model=lambda name: name == "convnext_tiny",
        list_models=lambda: ["convnext_tiny", "vit_base"],
        create_model=make,
    )
    monkeypatch.setitem(sys.modules, "timm", timm)
    assert build_model(TrainSettings(model="convnext_tiny"), 7).out_features == 7
    assert made == {"convnext_tiny": {"num_classes": 7, "pretrained": False}}
    with pytest.raises(ValueError, match=r"resnet18, resnet50.*convnext_tiny"):
        build_model(TrainSettings(model="convnext_tinny"), 7)
    with pytest.raises(ValueError, match="small_inputs"):
        build_model(TrainSettings(model="convnext_tiny", small_inputs=True), 7)
