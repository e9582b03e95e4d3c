"""Images cut into patches, compared with Pillow and independent loops on photos of many aspects."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photo_folder import photo, write_folder
from PIL import Image

from penstock.loaders import LoaderError, PatchBudget, create_loader
from penstock.loaders.front.loader import Batch, Loader
from penstock.loaders.make.python_rows import PythonRows
from penstock.pipelines import ImagePipeline, imagenet_eval, imagenet_train
from penstock.pipelines.native.library import native_library

MEAN, STD = (0.5, 0.25, 0.75), (0.5, 1.0, 0.25)
LENGTHS = {"torch": (30, 77), "pillow": (50,)}


@pytest.fixture(scope="module")
def many_aspects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos cropped to aspects from 1:12 to 12:1, as JPEG and PNG."""
    root = tmp_path_factory.mktemp("aspects")
    for number, (share, tall) in enumerate(itertools.product(np.linspace(0.08, 1, 10), (False, True))):
        with Image.open(io.BytesIO(photo(number, large=True))) as image:
            side = min(image.size)
            size = (side, max(1, int(side * share)))[:: -1 if tall else 1]
            image.crop((0, 0, *size)).resize((max(1, size[0] // 2), max(1, size[1] // 2))).save(
                root / f"{number:02d}.{'png' if number % 7 == 3 else 'jpg'}", quality=95
            )
    return root


def largest_grid(width: int, height: int, patch: int, length: int) -> tuple[int, int]:
    """Return columns and rows, by trying ever larger scales."""
    best = (1, 1)
    for sides in range(1, 20_000):
        scale = sides * patch / 400 / max(width, height)
        grid = max(1, int(np.ceil(width * scale / patch))), max(1, int(np.ceil(height * scale / patch)))
        if grid[0] * grid[1] > length:
            return best
        best = grid
    return best


def expect(path: Path, batch: Batch, row: int, patch: int, channels: int) -> tuple[Any, list[tuple[int, int]]]:
    """Return the patches of a row, float32 [count, levels], and their rows and columns."""
    x, y, w, h = batch.windows[row].tolist()
    columns, rows = largest_grid(w, h, patch, batch.images.shape[1])
    with Image.open(path) as image:
        size = (columns * patch, rows * patch)
        scaled = image.convert("RGB").crop((x, y, x + w, y + h)).resize(size, Image.Resampling.BILINEAR)
    pixels = np.asarray(scaled.convert("L") if channels == 1 else scaled).reshape(
        rows * patch, columns * patch, channels
    )
    pixels = pixels[:, ::-1] if batch.flips[row] else pixels
    patches, places = [], []
    for top in range(rows):
        for left in range(columns):
            patches.append(pixels[top * patch : (top + 1) * patch, left * patch : (left + 1) * patch].ravel())
            places.append((top, left))
    return np.array(patches), places


@pytest.mark.filterwarnings("ignore:the data has no labels")
@pytest.mark.parametrize("resample", ["pillow", "torch"])
@pytest.mark.parametrize(
    ("patch", "channels", "crop"),
    [(16, 3, "random_resized"), (16, 3, "center"), (7, 3, "full"), (16, 1, "random_resized")],
)
def test_patches_equal_those_of_pillow_and_loops(
    many_aspects: Path, resample: Any, crop: Any, patch: int, channels: Any
) -> None:
    normalising = {"mean": MEAN, "std": STD} if channels == 3 else {"mean": MEAN[:1], "std": STD[:1]}
    pipeline = ImagePipeline(crop=crop, resample=resample, channels=channels, **normalising)  # type: ignore[arg-type]
    budget = PatchBudget(size=patch, sequence_lengths=LENGTHS[resample])
    settings: dict[str, Any] = {"pipeline": pipeline, "patches": budget, "batch_size": 3, "drop_last": False}
    files, served, distances = sorted(many_aspects.iterdir()), [], []
    with create_loader(many_aspects, **settings, workers=0, pad=True) as loader:
        for batch in loader.batches():
            values = batch.images.reshape(*batch.images.shape[:2], -1, channels) * torch.tensor(pipeline.std)
            levels = ((values + torch.tensor(pipeline.mean)) * 255).flatten(2).numpy()
            valid, places = batch.fields["patch_valid"], batch.fields["patch_coord"]
            assert (batch.images[~valid] == 0).all()
            assert (places[~valid] == 0).all()
            for row, sample in enumerate(batch.index.tolist()):
                if sample < 0:
                    assert not valid[row].any()
                    continue
                wanted, where = expect(files[sample], batch, row, patch, channels)
                count = len(where)
                assert valid[row].tolist() == [True] * count + [False] * (batch.images.shape[1] - count)
                assert list(map(tuple, places[row, :count].tolist())) == where
                distances.append(np.abs(levels[row, :count] - wanted))
                served.append(sample)
    assert sorted(served) == list(range(len(files)))
    far = np.concatenate([each.ravel() for each in distances])
    assert far.max() < (0.01 if resample == "pillow" else 1.01)
    assert far.mean() < (0.01 if resample == "pillow" else 0.06)


def test_an_image_is_not_enlarged_beyond_the_limit(many_aspects: Path) -> None:
    pipeline = ImagePipeline(crop="full", flip=0)
    for max_ratio in (None, 0.5):
        patches = PatchBudget(size=16, sequence_lengths=2000, max_ratio=max_ratio)
        with create_loader(many_aspects, pipeline=pipeline, patches=patches, batch_size=20, workers=0) as loader:
            (batch,) = loader.batches()
        ratios = batch.places[:, 2:] / batch.windows[:, 2:]
        whole = (batch.places[:, 2:] - 16) / batch.windows[:, 2:]  # before sides are rounded up to patches
        assert (whole.max() > 1) if max_ratio is None else (whole.max() <= 0.5 <= ratios.max())


def test_batches_are_dicts_that_a_model_accepts(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "photos", 12)
    patches = PatchBudget(size=8, sequence_lengths=(10, 20), tokens=60)
    with create_loader(
        root, patches=patches, workers=0, with_index=True, batch_transform=lambda x, y: (x + 1, y)
    ) as loader:
        batches = list(loader)
    assert sorted(tuple(batch["patches"].shape) for batch in batches) == [(3, 20, 192), (6, 10, 192)]
    for batch in batches:
        assert list(batch.keys()) == ["patches", "labels", "patch_coord", "patch_valid", "index"]
        assert [value.dtype for value in batch.values()] == [
            torch.float32,
            torch.int64,
            torch.int64,
            torch.bool,
            torch.int64,
        ]
        assert (batch["patches"][~batch["patch_valid"]] == 1).all()


def test_by_default_a_batch_of_the_longest_sequence_has_batch_size_images(tmp_path: Path) -> None:
    patches = PatchBudget(size=8, sequence_lengths=(10, 20))
    with create_loader(write_folder(tmp_path, 12), patches=patches, batch_size=3, workers=0) as loader:
        assert sorted(tuple(batch.images.shape[:2]) for batch in loader.batches()) == [(3, 20), (6, 10)]
    assert PatchBudget(tokens=576).tokens == 576  # space for one image of the longest sequence


def test_ordinary_photos_are_cut_into_patches_by_the_native_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that the library refuses is made in Python, with the same pixels, several times slower."""
    if native_library() is None:
        pytest.skip("without the native library")
    monkeypatch.setattr(PythonRows, "_fill_row", None)
    with create_loader(
        write_folder(tmp_path, 12), patches=PatchBudget(size=8, sequence_lengths=16), batch_size=4, workers=0
    ) as loader:
        assert len(list(loader)) == 3


def test_padding_is_zero_for_raw_levels_and_bad_samples(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "photos", 12)
    (root / "class1" / "0004.jpg").write_bytes(photo(4)[:90])
    pipeline = ImagePipeline(crop="full", flip=0)  # an evaluation: a bad sample becomes padding
    patches = PatchBudget(size=8, sequence_lengths=20)
    settings: dict[str, Any] = {"pipeline": pipeline, "patches": patches, "batch_size": 6, "on_bad_sample": "replace"}
    with create_loader(root, **settings, dtype=torch.uint8, pad=True, workers=2, workers_are="threads") as loader:
        for _ in range(3):  # slots are reused
            for batch in loader.batches():
                valid = batch.fields["patch_valid"]
                assert (batch.images[~valid] == 0).all()
                assert valid.any(1).tolist() == [sample >= 0 for sample in batch.index.tolist()]
        assert [bad.sample for bad in loader.ledger().bad] == [5]


@pytest.mark.filterwarnings("ignore:the data has no labels")
def test_padding_is_zero_in_a_slot_that_had_a_larger_image(many_aspects: Path) -> None:
    """For raw levels, only the cut clears the memory behind an image."""
    budget = PatchBudget(size=7, sequence_lengths=50)
    settings: dict[str, Any] = {"patches": budget, "batch_size": 4, "dtype": torch.uint8, "workers": 1}
    counts, left = [], 0
    with create_loader(many_aspects, **settings, workers_are="threads") as loader:
        for _ in range(8):
            for batch in loader.batches():
                valid = batch.fields["patch_valid"]
                counts += valid.sum(1).tolist()
                left += int(batch.images[~valid].sum())
                del batch
    assert max(counts) > min(counts)
    assert left == 0


def open_with(source: Any, **settings: Any) -> Loader:
    defaults = {"patches": PatchBudget(size=8, sequence_lengths=16), "batch_size": 4, "workers": 0}
    return create_loader(source, **{**defaults, **settings})


def test_a_state_of_patches_names_them_and_refuses_others(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "photos", 12)
    with open_with(root) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with open_with(root, pipeline=imagenet_train(99)) as loader:
        loader.load_state_dict(state)  # the pipeline's size is not used
    words = r"the state has size=\{'patch': 8, 'lengths': \[16\], 'max_ratio': None\}, this loader"
    for other in ({"patches": PatchBudget(size=16, sequence_lengths=16)}, {"patches": None}):
        with open_with(root, **other) as loader, pytest.raises(LoaderError, match=words):
            loader.load_state_dict(state)


def test_an_evaluation_in_patches_serves_all_images_in_their_order(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "photos", 10)
    with open_with(root, pipeline=imagenet_eval(64), patches=PatchBudget(size=8, sequence_lengths=16)) as loader:
        assert [batch.index.tolist() for batch in loader.batches()] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
