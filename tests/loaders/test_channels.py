"""Images of 1 to 64 channels as arrays, files and stacks: pixels by an independent reference, sources, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from band_images import keeping, npy
from odd_images import encoded
from PIL import Image
from tar_files import write_tar

from penstock.loaders import Encoding, create_loader, open_source, split, stack, with_labels
from penstock.loaders.front.loader import Loader
from penstock.pipelines import Augmentations, ImagePipeline
from penstock.pipelines.batch.stage import BatchStage
from penstock.pipelines.plan.augmentations import BatchKey

COUNT = 9
RAW = {8: torch.uint8, 16: torch.uint16, 32: torch.float32}
TYPES = {8: np.uint8, 16: np.uint16, 32: np.float32}


def serve(source: Any, pipeline: ImagePipeline, **settings: Any) -> dict[int, np.ndarray]:
    """Return the levels of each sample, [h, w, channels]."""
    defaults = {"batch_size": 4, "shuffle": False, "drop_last": False, "dtype": RAW[pipeline.depth], "workers": 0}
    with create_loader(source, pipeline=pipeline, with_index=True, **{**defaults, **settings}) as loader:
        return {int(i): as_array(image) for images, _, index in loader for i, image in zip(index, images, strict=True)}


def as_array(image: torch.Tensor) -> np.ndarray:
    image = image.permute(1, 2, 0)
    return image.view(torch.int16).numpy().view(np.uint16) if image.dtype == torch.uint16 else image.numpy()


def make_images(channels: int, depth: int, size: tuple[int, int] = (20, 24)) -> np.ndarray:
    rng = np.random.default_rng(channels)
    return (rng.random((COUNT, *size, channels)) * (2**16 if depth == 16 else 256)).astype(TYPES[depth])


def resize_alone(levels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize one channel by Pillow, whose floats have the same weights."""
    image = Image.fromarray(levels.astype(np.float32)).resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(image)


@pytest.mark.parametrize(("channels", "depth"), [(1, 32), (2, 8), (4, 16), (5, 8), (7, 16), (13, 32), (64, 8), (3, 32)])
def test_each_channel_is_cropped_resized_and_turned_alone(channels: int, depth: int) -> None:
    images = make_images(channels, depth)
    settings: dict[str, Any] = {"size": (13, 13), "vertical_flip": 0.5, "rotate90": 0.5}
    with create_loader(
        (images, np.zeros(COUNT, int)),
        pipeline=keeping(channels, depth, **settings),
        batch_size=COUNT,
        dtype=RAW[depth],
        drop_last=False,
        workers=0,
        seed=channels,
    ) as loader:
        (batch,) = loader.batches()
    for row, index in enumerate(batch.index.tolist()):
        x, y, w, h = batch.windows[row]
        crop = images[index, y : y + h, x : x + w]
        expected = np.stack([resize_alone(crop[:, :, channel], (13, 13)) for channel in range(channels)], 2)
        expected = expected.transpose(1, 0, 2) if batch.turns[row] & 2 else expected
        expected = expected[::-1] if batch.turns[row] & 1 else expected
        expected = expected[:, ::-1] if batch.flips[row] else expected
        distance = np.abs(as_array(batch.images[row]).astype(float) - expected)
        assert distance.max() <= (1e-2 if depth == 32 else 1.0), (index, distance.max())


def test_padding_has_a_level_for_each_channel() -> None:
    levels = tuple(range(1, 6))
    for depth, factor in ((8, 1), (16, 257), (32, 1)):
        pipeline = keeping(5, depth, size=(30, 20), crop="letterbox", fill=levels)
        for image in serve((make_images(5, depth), np.zeros(COUNT, int)), pipeline).values():
            assert image[0, 0].tolist() == [factor * level for level in levels]
    assert keeping(5).fill == (0,) * 5
    assert keeping(5, fill=-1.5).fill == (-1.5,) * 5


def test_floats_are_normalised_for_each_channel() -> None:
    for depth, highest in ((8, 255), (16, 65535), (32, 1)):
        images, mean, std = make_images(5, depth), (0.1, 0.2, 0.3, 0.4, 0.5), (1.0, 0.5, 0.25, 2.0, 4.0)
        pipeline = ImagePipeline(size=(20, 24), crop="full", flip=0, channels=5, depth=depth, mean=mean, std=std)  # type: ignore[arg-type]
        for index, image in serve((images, np.zeros(COUNT, int)), pipeline, dtype=torch.float32).items():
            expected = (images[index] / np.float64(highest) - mean) / std
            np.testing.assert_allclose(image, expected, rtol=1e-5, atol=1e-5)


def test_augmentations_of_single_channels_treat_each_alone() -> None:
    images = torch.from_numpy(make_images(7, 8))[:8]
    augment = Augmentations(blur=0.5, solarize=0.5, erasing=0.5)
    stage = BatchStage(keeping(7, 8, size=(20, 24), augment=augment), torch.uint8, torch.device("cpu"))
    plan = stage.plan(BatchKey(0, 0, np.arange(8), 0))
    found = stage(images, plan=plan)
    for channel in range(7):
        alone = BatchStage(keeping(1, 8, size=(20, 24), augment=augment), torch.uint8, torch.device("cpu"))
        own = images[..., channel : channel + 1].contiguous()
        assert torch.equal(found[:, channel : channel + 1], alone(own, plan=plan))
    for name, value in {"auto_augment": "rand", "color_jitter": (0.4, 0, 0, 0), "grayscale": 0.1}.items():
        with pytest.raises(ValueError, match=rf"of colours \({name}\), got 7: blur"):
            keeping(7, 8, augment=Augmentations(**{name: value}))


@pytest.fixture(scope="module")
def bands(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """Samples of four channels as .npy: whole, and one file for each channel in folders, in a tar and in a table."""
    root, images = tmp_path_factory.mktemp("bands"), make_images(4, 16)
    members: list[tuple[str | bytes, bytes]] = []
    for index, image in enumerate(images):
        name = f"{'ab'[index > 4]}/{index}.npy"
        for folder, levels in [("whole", image), *((f"b{band}", image[:, :, band]) for band in range(4))]:
            (root / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (root / folder / name).write_bytes(npy(levels))
        order = np.random.default_rng(index).permutation(4)
        members += [(f"{index}.b{band}.npy", npy(image[:, :, band])) for band in order]
        members.append((f"{index}.cls", b"%d" % (index % 3)))
    write_tar(root / "bands.tar", members)
    write_tar(root / "whole.tar", [(f"{index}.npy", npy(image)) for index, image in enumerate(images)])
    names = [f"{'ab'[index > 4]}/{index}.npy" for index in range(COUNT)]
    columns = {f"b{band}": [f"b{band}/{name}" for name in names] for band in range(4)}
    pd.DataFrame({**columns, "label": ["x", "y", "z"] * 3}).to_csv(root / "bands.csv", index=False)
    return root, images


FOUR = keeping(4, 16, size=(20, 24), crop="full", flip=0)
BANDS = ("b0", "b1", "b2", "b3")


def sources(root: Path) -> dict[str, Any]:
    folders = [f"{root}/b{band}/*/*.npy" for band in range(4)]
    return {
        "pattern": open_source(f"{root}/whole/*/*.npy"),
        "list": [(f"{root}/whole/{'ab'[index > 4]}/{index}.npy", index) for index in range(COUNT)],
        "tar": open_source(root / "whole.tar", image="npy"),
        "stacked members": open_source(root / "bands.tar", image=[f"{band}.npy" for band in BANDS]),
        "stacked columns": open_source(root / "bands.csv", image=BANDS),
        "stacked frame": open_source(pd.read_csv(root / "bands.csv"), image=BANDS, root=root),
        "stacked patterns": stack(folders),
        "stacked by position": stack(folders, by="position"),
        "stacked arrays": stack(
            [(make_images(4, 16)[..., band], np.arange(COUNT)) for band in range(4)], by="position"
        ),
    }


def test_files_of_all_kinds_and_stacks_serve_the_same_levels(bands: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    root, images = bands
    for name, source in sources(root).items():
        found = serve(source, FOUR)
        assert len(found) == COUNT
        assert all(np.array_equal(found[index], images[index]) for index in range(COUNT)), name
    for number, kind in enumerate(("jpeg", "array")):
        for name in ("pattern", "stacked members", "stacked arrays"):
            cache = tmp_path / f"{number}{name}.h5"
            options = {"backend": ("hdf5", "dali")[number], "cache": cache, "encoding": Encoding(kind=kind)}
            for source in (sources(root)[name], cache):
                more = options if source is not cache else {"backend": "hdf5"}
                found = serve(source, FOUR, **more)
                assert all(np.array_equal(found[index], images[index]) for index in range(COUNT)), (name, kind)


def test_labels_and_names_of_a_stack_are_those_of_its_first_source(bands: tuple[Path, np.ndarray]) -> None:
    root, _ = bands
    source = open_source(root / "bands.tar", image=[f"{band}.npy" for band in BANDS])
    assert source.labels(np.arange(COUNT)).tolist() == [0, 1, 2] * 3
    assert source.name(4) == open_source(root / "bands.tar", image="b0.npy").name(4)  # type: ignore[attr-defined]
    assert open_source(root / "bands.csv", image=BANDS).classes == (b"x", b"y", b"z")
    parts = split(stack([f"{root}/{band}/*/*.npy" for band in BANDS]), 0.6)
    assert [len(part) for part in parts] != [COUNT, 0]
    assert sum(map(len, parts)) == COUNT
    floats = with_labels(source, np.arange(COUNT) / 2)
    with create_loader(floats, pipeline=FOUR, batch_size=COUNT, shuffle=False, workers=0) as loader:
        ((_, labels),) = loader
    assert labels.tolist() == (np.arange(COUNT) / 2).tolist()
    again = stack([f"{root}/{band}/*/*.npy" for band in BANDS])
    assert again.fingerprint == stack([f"{root}/{band}/*/*.npy" for band in BANDS]).fingerprint
    assert again.fingerprint != stack([f"{root}/{band}/*/*.npy" for band in reversed(BANDS)]).fingerprint


def test_a_stack_refuses_samples_without_a_partner(tmp_path: Path) -> None:
    one, two = (np.zeros((n, 4, 4), np.uint8) for n in (3, 4))
    with pytest.raises(ValueError, match="source 2 of the stack has 4 images, but the first has 3"):
        stack([(one, [0] * 3), (two, [0] * 4)], by="position")
    write_tar(tmp_path / "t.tar", [("0.a.npy", npy(one[0])), ("0.b.npy", npy(one[0])), ("1.a.npy", npy(one[0]))])
    with (
        pytest.warns(UserWarning, match="left out: 1 sample without an image"),
        pytest.raises(ValueError, match=r"source 2 of the stack: no band for sample 0 .*t.tar"),
    ):
        open_source(tmp_path / "t.tar", image=("a.npy", "b.npy"))
    with (
        pytest.warns(UserWarning, match="left out: 1 sample without an image"),
        pytest.warns(UserWarning, match="left out: 1 image of source 2 of the stack without a sample"),
    ):
        assert len(open_source(tmp_path / "t.tar", image=("b.npy", "a.npy"))) == 1
    for wrong in ((), ("a.npy", 3)):
        with pytest.raises(ValueError, match="image must be a name, or several names for a stack"):
            open_source(tmp_path / "t.tar", image=wrong)
    with pytest.raises(ValueError, match="2 to 64 sources, got 1"):
        stack([(one, [0] * 3)])
    with pytest.raises(ValueError, match="by must be one of name, position, got 'row'"):
        stack([(one, [0] * 3)] * 2, by="row")  # type: ignore[arg-type]


def test_repaired_jpegs_of_a_stack_are_counted(tmp_path: Path) -> None:
    whole = encoded(np.random.default_rng(0).integers(0, 256, (40, 40), np.uint8), "JPEG")
    for name, data in (("whole", whole), ("cut", whole[:-200] + b"\xff\xd9")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jpg").write_bytes(data)
    source = stack([tmp_path / "whole", tmp_path / "cut"])
    with create_loader(source, pipeline=keeping(2, 8, size=(8, 8)), batch_size=1, workers=0) as loader:
        assert sum(1 for _ in loader) == 1
        assert loader.stats().repaired == 1


def test_the_loader_describes_no_native_decoder_for_them() -> None:
    loader: Loader = create_loader((make_images(5, 8), np.zeros(COUNT, int)), pipeline=keeping(5, 8), batch_size=2)
    assert loader.describe()["decoder"] != "native"
