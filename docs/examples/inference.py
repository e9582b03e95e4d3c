"""Write the class of each image of a folder next to its path.

python inference.py photos predictions.csv
"""

import argparse
import csv

import torch

from penstock.bench.train.step.models import resnet18
from penstock.loaders import create_loader
from penstock.pipelines import imagenet_eval

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("table")
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--batch-size", type=int, default=256)
args = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
pipeline = imagenet_eval(args.size)
loader = create_loader(args.data, pipeline=pipeline, batch_size=args.batch_size, with_index=True, device=device)
model = resnet18(1000).to(device).eval()  # load your weights here
with open(args.table, "w", newline="", errors="surrogateescape") as file, torch.inference_mode():
    table = csv.writer(file)
    for images, _, index in loader:
        table.writerows(zip(loader.paths(index), model(images).argmax(1).tolist(), strict=True))
print(f"{args.table}: {loader.stats().images} images")
