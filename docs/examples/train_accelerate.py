"""Train with Accelerate: register the loader for checkpoints but do not prepare it: its batches are on the device.

accelerate launch train_accelerate.py imagenet
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator

from penstock.bench.train.step.models import resnet18
from penstock.loaders import create_loader
from penstock.pipelines import imagenet_train

parser = argparse.ArgumentParser()
parser.add_argument("data", type=Path)
parser.add_argument("--epochs", type=int, default=90)
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--batch-size", type=int, default=256)
parser.add_argument("--state", type=Path, default=Path("state"))
args = parser.parse_args()

accelerator = Accelerator()
pipeline = imagenet_train(args.size)
loader = create_loader(args.data / "train", pipeline=pipeline, batch_size=args.batch_size, device=accelerator.device)
model = resnet18(len(loader.classes))
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
accelerator.register_for_checkpointing(loader)
if args.state.exists():
    accelerator.load_state(args.state)

while loader.epoch < args.epochs:
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    accelerator.save_state(args.state)
    accelerator.print(f"epoch {loader.epoch - 1}: loss {loss.item():.3f}")
