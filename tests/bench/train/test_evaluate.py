"""Exact validation, compared with manual counts."""

import math

import pytest
import torch
from torch import nn

from penstock.bench.train.evaluate import evaluate
from penstock.bench.train.step.settings import TrainSettings


class FirstPixelClass(nn.Module):
    """Predicts the class stored in the first pixel, with a confidence that gives a known loss."""

    def forward(self, images):
        return 2.0 * nn.functional.one_hot(images[:, 0, 0, 0].long(), 10).float()


def images_predicting(classes):
    images = torch.zeros(len(classes), 3, 4, 4)
    images[:, 0, 0, 0] = torch.tensor(classes, dtype=torch.float32)
    return images


SETTINGS = TrainSettings(channels_last=False)
BATCHES = [
    (images_predicting([0, 1, 2, 3]), torch.tensor([0, 1, 2, 9])),
    (images_predicting([4, 0, 0, 0]), torch.tensor([4, 5, -1, -1])),
    (images_predicting([0, 0]), torch.tensor([-1, -1])),
]


def test_accuracy_counts_every_labelled_sample_once():
    result = evaluate(FirstPixelClass(), BATCHES, SETTINGS)
    assert (result.images, result.accuracy) == (6, 4 / 6)
    normaliser = math.log(math.exp(2) + 9)
    assert result.loss == pytest.approx((4 * (normaliser - 2) + 2 * normaliser) / 6)


def test_no_labelled_sample_is_an_error():
    with pytest.raises(ValueError, match="no labelled sample"):
        evaluate(FirstPixelClass(), BATCHES[2:], SETTINGS)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_evaluated_in_evaluation_mode_and_restored(training):
    model = nn.Sequential(nn.Dropout(1.0), FirstPixelClass()).train(training)
    assert evaluate(model, BATCHES, SETTINGS).accuracy == 4 / 6
    assert model.training is training
    with pytest.raises(ZeroDivisionError):
        evaluate(model, (1 / 0 for _ in range(1)), SETTINGS)
    assert model.training is training


def test_tensors_of_the_loader_can_still_be_trained_on():
    made = []

    def loader():
        for images, labels in BATCHES:
            made.append(images.clone())
            yield made[-1], labels

    evaluate(FirstPixelClass(), loader(), SETTINGS)
    assert len(made) == 3
    assert not any(images.is_inference() for images in made)


def test_validation_keeps_no_graph():
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 10))
    grads = []
    model.register_forward_hook(lambda module, inputs, output: grads.append(output.requires_grad))
    evaluate(model, BATCHES, SETTINGS)
    assert grads == [False] * 3
