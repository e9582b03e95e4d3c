"""DALI's own pipeline, the real one on the CPU: every file once an epoch, its own label, what the model takes."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch

from penstock.bench.probe.data.wrapped_sources import repeat_source
from penstock.bench.record.bench_record import BenchSettings
from penstock.bench.record.loader_rate import loader_rate
from penstock.bench.run.dali_pipeline import DaliPipeline
from penstock.loaders import open_source
from penstock.pipelines import LoaderError, imagenet_train

NUM_FILES = 24


def dali(folder: Any, options: dict[str, Any], served: Any = None, dtype: str = "float32") -> DaliPipeline:
    settings = BenchSettings(batch_size=8, size=32, dtype=dtype)
    return DaliPipeline(folder, folder if served is None else served, settings, options, (64, 48))


@pytest.fixture(scope="module")
def greys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A class a file, each file of the grey that its class number tells."""
    root = tmp_path_factory.mktemp("greys")
    for number in range(NUM_FILES):
        (root / f"class{number:02d}").mkdir()
        pixels = np.full((48, 64, 3), 10 * number, np.uint8)
        (root / f"class{number:02d}" / "grey.jpg").write_bytes(simplejpeg.encode_jpeg(pixels, 95, "RGB", "444"))
    return root


@pytest.mark.parametrize(
    ("dtype", "handed_out"),
    [
        ("uint8", torch.uint8),
        ("float32", torch.float32),
        ("float16", torch.float16),
        ("bfloat16", torch.float16),
    ],
)
def test_an_epoch_serves_each_file_once_with_its_label(greys: Path, dtype: str, handed_out: torch.dtype) -> None:
    source = open_source(greys)
    pipeline = imagenet_train(32)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (pipeline.mean, pipeline.std))
    with closing(dali(source, {"workers": 2, "prefetch": 3}, dtype=dtype)) as pipeline:
        orders = []
        for _ in range(2):
            seen = []
            for images, labels in pipeline:
                assert (images.shape, images.dtype, labels.dtype) == ((8, 3, 32, 32), handed_out, torch.int64)
                assert images.is_contiguous(memory_format=torch.channels_last)
                for image, label in zip(images.float(), labels.tolist(), strict=True):
                    pixels = image if dtype == "uint8" else (image * std + mean) * 255
                    assert float((pixels - 10 * label).abs().max()) < 2
                    seen.append(label)
            assert sorted(seen) == list(range(NUM_FILES))
            orders.append(seen)
        assert orders[0] != orders[1]
        assert loader_rate(pipeline, seconds=0.1).median > 0


def test_entries_are_the_files_again_and_again(greys: Path) -> None:
    source = open_source(greys)
    with closing(dali(source, {"workers": 1}, repeat_source(source, 2 * NUM_FILES + 3))) as pipeline:
        epoch = Counter(label for _, labels in pipeline for label in labels.tolist())
    assert sum(epoch.values()) == 48  # whole batches
    assert set(epoch.values()) <= {1, 2, 3}
    assert len(epoch) == NUM_FILES


def test_what_it_cannot_read_is_a_loader_error(greys: Path, tmp_path: Path) -> None:
    arrays = open_source((np.zeros((8, 40, 40, 3), np.uint8), np.zeros(8, np.int64)))
    with pytest.raises(LoaderError, match=r"E-MISUSE.*needs a folder of files"):
        dali(arrays, {"workers": 1})
    for number in range(8):
        (tmp_path / f"{number}.jpg").write_bytes(b"\xff\xd8\xff not an image")
    broken = open_source(tmp_path)
    with pytest.raises(LoaderError, match=r"E-CORRUPT\] cause=DALI: nvImageCodec failure") as caught:
        dali(broken, {"workers": 1})
    assert "Current pipeline" not in caught.value.line()
