"""Train a ResNet in plain torch, with mixed precision, on one or more GPUs or a CPU; stop and resume it at any time.

python train_torch.py imagenet                                  # one process
torchrun --nproc-per-node 8 train_torch.py imagenet             # eight GPUs
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from penstock.bench.train.step.models import resnet18
from penstock.loaders import create_loader
from penstock.pipelines import imagenet_eval, imagenet_train

parser = argparse.ArgumentParser()
parser.add_argument("data", type=Path)
parser.add_argument("--epochs", type=int, default=90)
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--batch-size", type=int, default=256)
parser.add_argument("--checkpoint", type=Path, default=Path("run.pt"))
args = parser.parse_args()

local, cuda = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.is_available()
device = torch.device("cuda", local) if cuda else torch.device("cpu")
if "RANK" in os.environ:
    dist.init_process_group("nccl" if cuda else "gloo")

settings = {"batch_size": args.batch_size, "device": device}
train = create_loader(args.data / "train", pipeline=imagenet_train(args.size), **settings)
val = create_loader(args.data / "val", pipeline=imagenet_eval(args.size), **settings)
model = resnet18(len(train.classes)).to(device, memory_format=torch.channels_last)
model = DistributedDataParallel(model) if dist.is_initialized() else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-5)
if args.checkpoint.exists():
    saved = torch.load(args.checkpoint, map_location=device)
    for part, name in ((model, "model"), (optimizer, "optimizer"), (train, "loader")):
        part.load_state_dict(saved[name])

while train.epoch < args.epochs:
    epoch = train.epoch
    for images, labels in train:
        with torch.autocast(device.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    counts = torch.zeros(2, device=device)
    with torch.inference_mode():
        for images, labels in val:  # label -1 in rows that pad the last batch of several ranks
            counts += torch.stack([(model(images).argmax(1) == labels)[labels >= 0].sum(), (labels >= 0).sum()])
    if dist.is_initialized():
        dist.all_reduce(counts)
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"epoch {epoch}: accuracy {counts[0] / counts[1]:.3f} of {int(counts[1])}")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": train.state_dict()}
        torch.save(state, args.checkpoint)
if dist.is_initialized():
    dist.destroy_process_group()
