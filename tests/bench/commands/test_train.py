"""`penstock train` with augmentations: the options reach the loader, and the loss counts soft targets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import penstock_here
from photo_folder import write_folder
from repaired_jpegs import cut

from penstock.loaders.front import create
from penstock.pipelines.augmentations import Augmentations
from penstock.pipelines.spec import ImagePipeline

OPTIONS = (
    *("--auto-augment", "trivial", "--color-jitter", ".4", ".3", ".2", ".1"),
    *("--erasing", ".25", "--mixup", ".2", "--cutmix", "1"),
)


@pytest.fixture
def dtypes() -> list[torch.dtype]:
    return []


@pytest.fixture
def pipelines(monkeypatch: pytest.MonkeyPatch, dtypes: list[torch.dtype]) -> list[ImagePipeline]:
    """The pipelines of all created stages; `dtypes` receives the dtypes of their output."""
    seen: list[ImagePipeline] = []

    class Noted(create.BatchStage):
        def __init__(self, pipeline: ImagePipeline, dtype: torch.dtype, *args: Any, **kwargs: Any) -> None:
            seen.append(pipeline)
            dtypes.append(dtype)
            super().__init__(pipeline, dtype, *args, **kwargs)

    monkeypatch.setattr(create, "BatchStage", Noted)
    return seen


def train(folder: Path, *options: str, fresh: bool = True) -> tuple[int, str]:
    data = write_folder(folder / "photos", 24) if fresh else folder / "photos"
    common = ("--epochs", "1", "--size", "16", "--batch-size", "8", "--workers", "0", "--device", "cpu")
    done = penstock_here("train", data, *common, *options)
    return done.returncode, done.stdout + done.stderr


def test_the_options_reach_the_batches_and_the_run_is_finite(tmp_path: Path, pipelines: list[ImagePipeline]) -> None:
    code, output = train(tmp_path, *OPTIONS, "--json", str(tmp_path / "report.json"))
    assert code == 0, output
    assert [p.augment for p in pipelines] == [
        Augmentations(auto_augment="trivial", color_jitter=(0.4, 0.3, 0.2, 0.1), erasing=0.25, mixup=0.2, cutmix=1.0)
    ]
    (epoch,) = json.loads((tmp_path / "report.json").read_text())["epochs"]
    assert epoch["images"] == 24
    assert 0 < epoch["loss"] < 20


@pytest.mark.parametrize(("options", "dtype"), [((), torch.float32), (("--amp", "bf16"), torch.bfloat16)])
def test_nothing_is_augmented_by_default(
    tmp_path: Path,
    pipelines: list[ImagePipeline],
    dtypes: list[torch.dtype],
    options: tuple[str, ...],
    dtype: torch.dtype,
) -> None:
    code, output = train(tmp_path, *options)
    assert code == 0, output
    assert [p.augment.active for p in pipelines] == [False]
    assert dtypes == [dtype]


def test_replaced_samples_are_printed_and_reported(tmp_path: Path) -> None:
    for options, code in (((), 3), (("--max-bad", "1"), 0), (("--max-bad", "0.05"), 0)):
        data = write_folder(tmp_path / "photos", 24)
        (data / "class0" / "0003.jpg").write_bytes(b"\xff\xd8\xff")
        report = tmp_path / "report.json"
        found, output = train(tmp_path, "--on-bad-sample", "replace", *options, "--json", str(report), fresh=False)
        assert found == code, output
        if code:  # by default one in a hundred may be bad
            assert "1 bad samples in epoch 0, max_bad is 0.01 of 24" in output
            continue
        assert "  planned=24 delivered=23 replaced=1 (E-" in output
        (epoch,) = json.loads(report.read_text())["epochs"]
        counts = {name: epoch["ledger"][name] for name in ("epoch", "planned", "delivered", "replaced")}
        assert counts == {"epoch": 0, "planned": 24, "delivered": 23, "replaced": 1}
        assert [line["path"].endswith("0003.jpg") for line in epoch["ledger"]["bad"]] == [True]


def test_repaired_images_are_left_out_on_request(tmp_path: Path) -> None:
    photo = write_folder(tmp_path / "photos", 24) / "class0" / "0003.jpg"
    photo.write_bytes(cut(photo.read_bytes(), 0))
    for option, words in (("count", "replaced=0 repaired=1"), ("replace", "replaced=1 (E-REPAIRED")):
        code, output = train(tmp_path, "--on-repaired", option, "--max-bad", "1", fresh=False)
        assert code == 0, output
        assert words in output
