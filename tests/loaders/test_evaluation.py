"""One checkpoint evaluated by the loop of pytorch/examples: with torch's loader, and with ours on 1, 2 and 3 ranks."""

from __future__ import annotations

from typing import Any

import pytest
from gloo_ranks import run_ranks

SCRIPT = """
import json, sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from penstock.loaders import create_loader
from penstock.pipelines import imagenet_eval

torch.set_num_threads(1)
rank, world, store, out = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
groups = {size: dist.new_group(range(size)) for size in (1, 2, 3)}

draw = torch.Generator().manual_seed(1)
pixels = torch.randint(0, 256, (83, 32, 32, 3), dtype=torch.uint8, generator=draw)
labels = torch.randint(0, 4, (83,), generator=draw)
pipeline = imagenet_eval(32, center_fraction=1.0)  # the whole image, as it is
normalised = (pixels / 255 - torch.tensor(pipeline.mean)) / torch.tensor(pipeline.std)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 4)).eval()


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n):
        self.sum, self.count = self.sum + value * n, self.count + n

    def all_reduce(self, group):
        total = torch.tensor([self.sum, self.count], dtype=torch.float64)
        dist.all_reduce(total, group=group)
        self.sum, self.count = total.tolist()


def validate(loader, group=None):
    losses, top1 = AverageMeter(), AverageMeter()
    with torch.no_grad():
        for images, target in loader:
            output = model(images)
            losses.update(torch.nn.functional.cross_entropy(output, target).item(), images.size(0))
            top1.update((output.argmax(1) == target).float().mean().item() * 100, images.size(0))
    if group is not None:
        losses.all_reduce(group)
        top1.all_reduce(group)
    return [top1.sum / top1.count, top1.count, losses.sum / losses.count]


def validate_kept(loader, group):
    total = torch.zeros(3, dtype=torch.float64)
    with torch.no_grad():
        for images, target in loader:
            keep = target >= 0
            output, target = model(images)[keep], target[keep]
            loss = torch.nn.functional.cross_entropy(output, target, reduction="sum")
            total += torch.stack([(output.argmax(1) == target).sum(), keep.sum(), loss])
    dist.all_reduce(total, group=group)
    correct, count, loss = total.tolist()
    return [100 * correct / count, count, loss / count]


found = {}
for batch in (16, 20):
    found[f"torch, {batch}"] = validate(DataLoader(TensorDataset(normalised.permute(0, 3, 1, 2), labels), batch))
    for size, group in groups.items():
        if rank >= size:
            continue
        place = {} if size == world else {"rank": rank, "world_size": size}
        ours = {"pipeline": pipeline, "batch_size": batch, "workers": 0, **place}
        arrays = (pixels.numpy(), labels.numpy())
        with create_loader(arrays, pad=False, **ours) as short, create_loader(arrays, **ours) as usual:
            steps = torch.tensor([len(short), len(usual)])
            found[f"{size} ranks, {batch}, without padding"] = validate(short, group)
            found[f"{size} ranks, {batch}, keep"] = validate_kept(usual, group)
            found[f"{size} ranks, {batch}, steps"] = steps.tolist()
Path(f"{out}.{rank}.json").write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(SCRIPT, tmp_path_factory.mktemp("ranks"), 3)


@pytest.mark.parametrize("batch", [16, 20])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_top_1_count_and_loss_are_those_of_torchs_loader(found: list[Any], size: int, batch: int) -> None:
    expected = found[0][f"torch, {batch}"]
    assert expected[1] == 83
    for rank in found[:size]:
        for how in ("without padding", "keep"):
            assert rank[f"{size} ranks, {batch}, {how}"] == pytest.approx(expected, rel=1e-5)


def test_ranks_make_equal_steps_where_they_pad(found: list[Any]) -> None:
    assert [rank["3 ranks, 20, steps"] for rank in found] == [[2, 2], [2, 2], [1, 2]]
