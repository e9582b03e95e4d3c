"""Statistics of channels, compared with numpy over all pixels at once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from band_images import npy
from command_line import penstock_here

from penstock.loaders import LoaderError, channel_statistics
from penstock.pipelines import ImagePipeline


def write(folder: Path, images: list[np.ndarray]) -> list[tuple[str, int]]:
    for number, levels in enumerate(images):
        (folder / f"{number:02d}.npy").write_bytes(npy(levels))
    return [(str(folder / f"{number:02d}.npy"), 0) for number in range(len(images))]


@pytest.mark.parametrize(("kind", "depth"), [("u1", 8), ("u2", 16), ("f4", 32), ("i2", 32)])
@pytest.mark.parametrize("ignore", [None, 0, 7])
def test_statistics_are_those_of_all_pixels(tmp_path: Path, kind: str, depth: int, ignore: float | None) -> None:
    rng = np.random.default_rng(depth)
    images = [(rng.random((*rng.integers(1, 30, 2), 5)) * 60000).astype(kind) % 200 for _ in range(21)]
    if kind == "f4":
        images[3][0] = np.nan
    values = np.concatenate([levels.reshape(-1, 5) for levels in images]).astype(np.float64)
    values[values == ignore] = np.nan
    found = channel_statistics(write(tmp_path, images), ignore=ignore)
    scale = {8: 255.0, 16: 65535.0, 32: 1.0}[depth]
    np.testing.assert_allclose(found.mean, np.nanmean(values, 0) / scale, rtol=1e-12)
    np.testing.assert_allclose(found.std, np.nanstd(values, 0) / scale, rtol=1e-10)
    assert found.counts == tuple((~np.isnan(values)).sum(0))
    assert (found.lowest, found.highest) == (tuple(np.nanmin(values, 0)), tuple(np.nanmax(values, 0)))
    assert (found.channels, found.depth, found.samples, found.bad) == (5, depth, 21, 0)
    assert ImagePipeline(**found.settings()).mean == found.mean


def test_photos_are_colours_on_the_scale_of_a_pipeline(photos: Path) -> None:
    found = channel_statistics(photos, samples=5, seed=1)
    assert (found.channels, found.depth, found.samples) == (3, 8, 5)
    assert all(0.2 < mean < 0.8 for mean in found.mean)
    grey, deep = (channel_statistics(photos, samples=5, seed=1, **more) for more in ({"channels": 1}, {"depth": 16}))
    assert min(found.mean) < grey.mean[0] < max(found.mean)
    np.testing.assert_allclose(deep.mean, found.mean, rtol=1e-12)
    assert channel_statistics(photos, samples=5, seed=2).mean != found.mean
    assert channel_statistics((np.full((4, 3, 3), 51, np.uint8), [0] * 4)).mean == (0.2,)


def test_bad_images_are_raised_or_counted(tmp_path: Path) -> None:
    images = [np.full((4, 4, 2), 100 + number, np.uint8) for number in range(4)]
    source = write(tmp_path, images)
    (tmp_path / "01.npy").write_bytes(npy(np.zeros((4, 4, 3), np.uint8)))
    with pytest.raises(ValueError, match=r"sample 1 \('.*01.npy'\) has 3 channels, but sample 0 has 2: pass channels="):
        channel_statistics(source)
    with pytest.raises(LoaderError, match=r"E-UNSUPPORTED.* sample=1 path=.*01.npy.*3 channels"):
        channel_statistics(source, channels=2, depth=8)
    with pytest.raises(LoaderError, match=r"E-UNSUPPORTED.* sample=1 path=.*01.npy.*3 channels.*channels=2"):
        channel_statistics(source, channels=2)
    found = channel_statistics(source, channels=2, depth=8, on_bad_sample="skip")
    assert (found.samples, found.bad, found.lowest) == (3, 1, (100, 100))
    with pytest.raises(LoaderError, match=r"E-NODATA.*no value in 1 images"):
        channel_statistics(source[:1], ignore=100)


@pytest.mark.parametrize(("kind", "depth"), [("u1", 8), ("u2", 16), ("f4", 32)])
def test_channels_decide_how_arrays_are_read(tmp_path: Path, kind: str, depth: int) -> None:
    images = [np.random.default_rng(side).integers(0, 256, (5, 30, side)).astype(kind) for side in range(40, 44)]
    source = write(tmp_path, images)
    values = np.concatenate([levels.reshape(5, -1) for levels in images], 1).astype(np.float64)
    found = channel_statistics(source, channels=5)
    np.testing.assert_allclose(found.mean, values.mean(1) / {8: 255.0, 16: 65535.0, 32: 1.0}[depth], rtol=1e-12)
    assert (found.channels, found.depth, found.samples) == (5, depth, 4)
    printed = json.loads(penstock_here("stats", f"{tmp_path}/*.npy", "--channels", "5", "--json").stdout)
    assert (printed["channels"], printed["depth"]) == (5, depth)
    (tmp_path / "02.npy").write_bytes(npy(np.zeros((4, 30, 42), kind)))
    with pytest.raises(LoaderError, match=r"E-UNSUPPORTED.* sample=2 path=.*02.npy.* 4 channels.*channels=5"):
        channel_statistics(source, channels=5)


def test_channels_in_the_first_axis_are_found_or_asked_for(tmp_path: Path) -> None:
    images = [np.random.default_rng(side).integers(0, 256, (5, 70, side), np.uint8) for side in (66, 80)]
    found = channel_statistics(write(tmp_path, images))
    values = np.concatenate([levels.reshape(5, -1) for levels in images], 1)
    np.testing.assert_allclose(found.mean, values.mean(1) / 255, rtol=1e-12)
    source = write(tmp_path, [images[0][:, :, :40]])
    with pytest.raises(LoaderError, match=r"00.npy.* 5 channels in its first axis, or 40 in .*channels=5 or channels="):
        channel_statistics(source)
    counts = {tuple(channel_statistics(source, channels=channels).counts) for channels in (5, 40)}
    assert counts == {(70 * 40,) * 5, (5 * 70,) * 40}
    assert channel_statistics(write(tmp_path, [images[0][:, :8, :40]])).channels == 40  # 5 is not a count: 8 is a side


def test_the_image_between_grey_and_colour_is_named(tmp_path: Path) -> None:
    source = write(tmp_path, [np.zeros((9, 9, channels), np.uint8) for channels in (1, 3, 3, 4, 1)])
    with pytest.raises(ValueError, match=r"sample 3 \('.*03.npy'\) has 4 channels, but sample 0 has 1"):
        channel_statistics(source)
    assert channel_statistics(source[:3]).channels == 3


def test_the_command_prints_arguments_of_a_pipeline(tmp_path: Path) -> None:
    write(tmp_path, [np.full((4, 4, 2), (51, 102), np.uint8)])
    pattern = f"{tmp_path}/*.npy"
    assert "ImagePipeline(channels=2, depth=8, mean=(0.2, 0.4), std=(0, 0))" in penstock_here("stats", pattern).stdout
    assert json.loads(penstock_here("stats", pattern, "--json").stdout)["counts"] == [16, 16]
