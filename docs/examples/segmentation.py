"""Train a small segmentation model: masks follow the crop and flip of their image.

python segmentation.py images masks --classes 21
"""

import argparse

import torch

from penstock.loaders import Masks, create_loader, with_fields
from penstock.pipelines.presets import segmentation_train

parser = argparse.ArgumentParser()
parser.add_argument("images")
parser.add_argument("masks")
parser.add_argument("--classes", type=int, default=21)
parser.add_argument("--size", type=int, default=256)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=50)
args = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
data = with_fields(args.images, mask=Masks(args.masks, ignore_index=255))
loader = create_loader(data, pipeline=segmentation_train(args.size), batch_size=args.batch_size, device=device)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, args.classes, 1)
).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for epoch in range(args.epochs):
    for batch in loader:
        masks = batch["mask"].long()  # 255 outside the image
        loss = torch.nn.functional.cross_entropy(model(batch["images"]), masks, ignore_index=255)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
