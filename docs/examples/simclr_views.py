"""Train SimCLR: two views of each image, read and decoded only once.

python simclr_views.py imagenet/train
"""

import argparse

import torch
import torch.nn.functional as F

from penstock.bench.train.step.models import resnet18
from penstock.loaders import create_loader
from penstock.pipelines import simclr

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--batch-size", type=int, default=256)
parser.add_argument("--epochs", type=int, default=100)
args = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
loader = create_loader(args.data, pipeline=simclr(args.size), batch_size=args.batch_size, device=device)
model = resnet18(128).to(device, memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def contrast(first, second, temperature=0.1):
    """Return the NT-Xent loss: each view must find the other view of its image."""
    both = F.normalize(torch.cat([first, second]), dim=1)
    scores = (both @ both.T / temperature).fill_diagonal_(float("-inf"))
    partner = torch.arange(len(both), device=both.device).roll(len(first))
    return F.cross_entropy(scores, partner)


for epoch in range(args.epochs):
    for (first, second), _ in loader:
        loss = contrast(model(first), model(second))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
