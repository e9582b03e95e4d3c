"""The guide to detection, with a stand-in for its model that finds the boxes of the file."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "detection.md"


def blocks() -> list[str]:
    """Return the Python blocks of the guide, on the CPU."""
    found = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [code.replace('"cuda"', '"cpu"').replace("512", "96") for code in found]


class Oracle:
    """A stand-in for a detector: returns the boxes of the served batch, `shift` pixels to the right."""

    def __init__(self, shift: float) -> None:
        self.shift, self.targets = shift, list[dict[str, Any]]()

    def __call__(self, images: list[torch.Tensor]) -> list[dict[str, Any]]:
        assert all(0 <= image.min() <= image.max() <= 1 for image in images)
        assert len(images) == len(self.targets)
        return self.targets

    def watch(self, loader: Any) -> Iterator[dict[str, Any]]:
        """Yield the batches of a loader; the detector finds the boxes of the last one."""
        for batch in loader:
            pairs = zip(batch["boxes"], batch["boxes_classes"], strict=True)
            self.targets = [
                {"boxes": boxes + self.shift, "labels": labels, "scores": torch.ones(len(boxes))}
                for boxes, labels in pairs
            ]
            yield batch


@pytest.mark.parametrize(("shift", "precision"), [(0.0, 1.0), (90.0, 0.0)])
def test_the_guide_evaluates_a_model(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift: float, precision: float
) -> None:
    pytest.importorskip("pycocotools")
    shutil.copytree(photos, tmp_path / "here", symlinks=True)
    monkeypatch.chdir(tmp_path / "here")
    train, with_torchvision, evaluate = blocks()
    oracle = Oracle(shift)
    namespace: dict[str, Any] = {"__name__": "page", "model": oracle, "oracle": oracle}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        exec(compile(train, PAGE, "exec"), namespace)
        served = {int(label) for target in namespace["targets"] for label in target["labels"]}
        assert served == {1}  # torchvision's background is 0
        assert namespace["images"].min() >= 0
        assert namespace["images"].max() <= 1
        compile(with_torchvision, PAGE, "exec")
        assert evaluate.count("for batch in loader:") == 1
        exec(compile(evaluate.replace("in loader:", "in oracle.watch(loader):"), PAGE, "exec"), namespace)
    assert len(namespace["results"]) == 10
    assert namespace["evaluation"].stats[0] == pytest.approx(precision, abs=1e-6)
