"""Train with Lightning: pass the loaders directly; a checkpoint saves their position.

python train_lightning.py imagenet
"""

import argparse
from pathlib import Path

import lightning
import torch

from penstock.bench.train.step.models import resnet18
from penstock.loaders import create_loader
from penstock.pipelines import imagenet_eval, imagenet_train


class Classifier(lightning.LightningModule):
    """A ResNet with cross-entropy."""

    def __init__(self, classes):
        super().__init__()
        self.model = resnet18(classes)

    def training_step(self, batch, step):
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.model(images), labels)

    def validation_step(self, batch, step):
        images, labels = batch
        correct = (self.model(images).argmax(1) == labels)[labels >= 0]  # -1: padding
        self.log("accuracy", correct.float().mean(), batch_size=len(correct))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


parser = argparse.ArgumentParser()
parser.add_argument("data", type=Path)
parser.add_argument("--epochs", type=int, default=90)
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--batch-size", type=int, default=256)
args = parser.parse_args()

train = create_loader(args.data / "train", pipeline=imagenet_train(args.size), batch_size=args.batch_size)
val = create_loader(args.data / "val", pipeline=imagenet_eval(args.size), batch_size=args.batch_size)
trainer = lightning.Trainer(max_epochs=args.epochs, enable_progress_bar=False, logger=False)
trainer.fit(Classifier(len(train.classes)), train, val)
print(f"accuracy {trainer.callback_metrics['accuracy']:.3f}")
