"""Image targets: files of every kind, sources of every kind, exact pairs for super-resolution, refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import simplejpeg
import torch
from band_images import npy
from odd_images import encoded
from photo_folder import photo, write_folder
from PIL import Image
from repaired_jpegs import cut
from tar_files import write_tar
from torch.nn import functional

from penstock.loaders import (
    Column,
    ImageTargets,
    LoaderError,
    Masks,
    PatchBudget,
    concat,
    create_loader,
    open_source,
    with_fields,
)
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.pipelines.batch.target_stage import target_stages
from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.sample.target_decoder import Layout
from penstock.pipelines.spec import Augmentations, ImagePipeline

COUNT, HEIGHT, WIDTH = 6, 18, 26
WHOLE = ImagePipeline(size=(HEIGHT, WIDTH), crop="center", center_fraction=None, flip=0.0)
CPU = torch.device("cpu")
ENGINES: dict[str, dict[str, Any]] = {
    "in the process": {"workers": 0, "decoder": "simplejpeg"},
    "threads": {"workers": 2, "workers_are": "threads"},
    "processes": {"workers": 1, "workers_are": "processes"},
    "hdf5": {"workers": 0, "backend": "hdf5"},
    "dali": {"workers": 0, "backend": "dali"},
}
Make = Callable[[np.random.Generator], tuple[bytes, npt.NDArray[Any]]]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for number in range(COUNT):
        pixels = rng.integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
    return tmp_path / "images"


def write(folder: Path, files: list[bytes], suffix: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    for number, data in enumerate(files):
        (folder / f"{number}{suffix}").write_bytes(data)
    return folder


def saved(values: npt.NDArray[Any], form: str = "PNG", **options: Any) -> bytes:
    return encoded(values, form, **options)


def serve(source: Any, name: str = "target", **settings: Any) -> Any:
    options = {"pipeline": WHOLE, "batch_size": COUNT, "workers": 0, "dtype": torch.uint8, **settings}
    with create_loader(source, **options) as loader:
        return next(iter(loader))[name]


def levels(rng: np.random.Generator, dtype: Any, *channels: int) -> npt.NDArray[Any]:
    high = np.iinfo(dtype).max
    return rng.integers(0, high, (HEIGHT, WIDTH, *channels), endpoint=True).astype(dtype)


def floats(rng: np.random.Generator, dtype: Any, *channels: int) -> npt.NDArray[Any]:
    return rng.normal(0, 1e3, (HEIGHT, WIDTH, *channels)).astype(dtype)


def made(values: npt.NDArray[Any], encode: Callable[..., bytes], **options: Any) -> tuple[bytes, npt.NDArray[Any]]:
    return encode(values, **options), values


def lossy(rng: np.random.Generator, *, colour: str) -> tuple[bytes, npt.NDArray[Any]]:
    pixels = levels(rng, np.uint8, 3 if colour == "RGB" else 1)
    data = simplejpeg.encode_jpeg(pixels, 95, colour)
    return data, simplejpeg.decode_jpeg(data, colour)


def without_alpha(rng: np.random.Generator, channels: int) -> tuple[bytes, npt.NDArray[Any]]:
    pixels = levels(rng, np.uint8, channels)
    return saved(pixels), pixels[..., :-1]


# A file and the values that are served for it, with the type and channels found by themselves.
FILES: dict[str, Make] = {
    "PNG L": lambda rng: made(levels(rng, np.uint8), saved),
    "PNG RGB": lambda rng: made(levels(rng, np.uint8, 3), saved),
    "PNG LA": lambda rng: without_alpha(rng, 2),
    "PNG RGBA": lambda rng: without_alpha(rng, 4),
    "PNG 16": lambda rng: made(levels(rng, np.uint16), saved),
    "TIFF 16": lambda rng: made(levels(rng, np.uint16), saved, form="TIFF"),
    "TIFF float": lambda rng: made(floats(rng, np.float32), saved, form="TIFF"),
    "TIFF int32": lambda rng: made(levels(rng, np.uint16).astype(np.int32) - 9, saved, form="TIFF"),
    "WebP": lambda rng: made(levels(rng, np.uint8, 3), saved, form="WEBP", lossless=True, exact=True),
    "JPEG": lambda rng: lossy(rng, colour="RGB"),
    "JPEG grey": lambda rng: lossy(rng, colour="GRAY"),
    "npy float32": lambda rng: made(floats(rng, np.float32), npy),
    "npy float64, 5": lambda rng: made(floats(rng, np.float64, 5), npy),
    "npy float16": lambda rng: made(floats(rng, np.float16), npy),
    "npy uint8, 2": lambda rng: made(levels(rng, np.uint8, 2), npy),
    "npy big-endian": lambda rng: made(levels(rng, np.uint16).astype(">u2"), npy),
    "npy, channels first": lambda rng: (lambda values: (npy(values.transpose(2, 0, 1)), values))(
        levels(rng, np.uint8, 3)
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_files_of_each_kind_are_served_exactly(images: Path, tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(1)
    files, values = zip(*(FILES[kind](rng) for _ in range(COUNT)), strict=True)
    wanted = np.stack(values).reshape(COUNT, HEIGHT, WIDTH, -1).transpose(0, 3, 1, 2)
    kept = {"uint8": "uint8", "uint16": "uint16"}.get(wanted.dtype.newbyteorder("=").name, "float32")
    source = with_fields(images, target=ImageTargets(write(tmp_path / "targets", list(files), ".npy")))
    sample: Any = source[2]  # type: ignore[index]
    assert np.array_equal(sample.fields["target"].transpose(2, 0, 1), wanted[2].astype(kept))
    build_cache(source, tmp_path / "cache.h5", workers=0)
    for given in (source, open_cache(tmp_path / "cache.h5")):
        target = serve(given)
        assert target.dtype == getattr(torch, kept)
        assert np.array_equal(target.numpy(), wanted.astype(kept))
    with_floats = with_fields(images, target=ImageTargets(tmp_path / "targets", dtype="float32"))
    assert np.array_equal(serve(with_floats).numpy(), wanted.astype(np.float32))


def test_targets_come_from_each_kind_of_source(images: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    values = np.stack([levels(rng, np.uint16) for _ in range(COUNT)])
    files = list(map(saved, values))
    folder = write(tmp_path / "depth", files, ".png")
    pictures = [(images / f"{number}.png").read_bytes() for number in range(COUNT)]
    members = [
        (f"{n}.{kind}", data[n]) for n in range(COUNT) for kind, data in (("in.png", pictures), ("out.png", files))
    ]
    tar = write_tar(tmp_path / "a.tar", members)
    rows = "".join(f"images/{number}.png,{number % 2},depth/{number}.png\n" for number in range(COUNT))
    (tmp_path / "list.csv").write_text("path,label,depth\n" + rows)
    table = pa.table({"image": pictures, "depth": list(map(npy, values)), "label": list(range(COUNT))})
    pq.write_table(table, tmp_path / "data.parquet")
    inputs, targets = open_source(tar, image="in.png"), open_source(tar, image="out.png")
    sources = [
        with_fields(images, target=ImageTargets(folder)),
        with_fields(images, target=ImageTargets(str(folder / "{name}.png"))),
        with_fields(images, target=ImageTargets(lambda name: folder / name)),
        with_fields(images, target=ImageTargets([folder / f"{number}.png" for number in range(COUNT)])),
        with_fields(images, target=ImageTargets(values)),
        with_fields(images, target=ImageTargets(torch.from_numpy(values[..., None]))),
        with_fields(images, target=open_source(folder)),
        with_fields(inputs, target=targets),
        with_fields(tmp_path / "list.csv", target=ImageTargets(Column("depth"))),
        with_fields(tmp_path / "data.parquet", target=ImageTargets(Column("depth"))),
    ]
    for source in sources:
        assert np.array_equal(serve(source)[:, 0].numpy(), values)
    both = concat([sources[0], sources[2]])
    assert np.array_equal(serve(both, batch_size=2 * COUNT)[:, 0].numpy(), np.concatenate((values, values)))


@pytest.mark.parametrize("engine", ENGINES)
def test_low_and_high_resolution_agree_to_the_pixel(tmp_path: Path, engine: str) -> None:
    """Each pixel of an image is a block of its target: under all crops that keep the scale, turns and flips."""
    rng = np.random.default_rng(4)
    low = [rng.integers(0, 256, (*rng.integers(20, 50, 2), 3)).astype(np.uint8) for _ in range(8)]
    write(tmp_path / "low", list(map(saved, low)), ".png")
    blocks = [pixels.repeat(3, 0).repeat(3, 1) for pixels in low]
    write(tmp_path / "high", list(map(saved, blocks)), ".png")
    source = with_fields(tmp_path / "low", target=ImageTargets(tmp_path / "high", scale=3, fill=7))
    turns: dict[str, Any] = {"rotate90": 0.75, "vertical_flip": 0.5, "flip": 0.5, "fill": (7, 7, 7)}
    pipelines = [
        ImagePipeline(size=(24, 24), crop="random", padding=5, **turns),
        ImagePipeline(size=(28, 28), crop="center", center_fraction=None, **turns),
    ]
    own = {"cache": tmp_path / "cache.h5"} if engine == "hdf5" else {}
    settings = {"pipeline": pipelines, "batch_size": 4, "dtype": torch.uint8, "memory_format": torch.contiguous_format}
    with create_loader(source, **settings, **own, **ENGINES[engine]) as loader:
        for batch in loader:
            for picture, target in zip(batch["images"], batch["target"], strict=True):
                assert target.is_contiguous()
                assert torch.equal(target, picture.repeat_interleave(3, 2).repeat_interleave(3, 3))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("kind", ["uint8", "uint16", "float32", "JPEG"])
def test_windows_are_resized_with_their_interpolation(
    images: Path, tmp_path: Path, interpolation: Any, kind: str
) -> None:
    rng = np.random.default_rng(5)
    if kind == "JPEG":
        files, values = zip(*(lossy(rng, colour="RGB") for _ in range(COUNT)), strict=True)
        where: Any = write(tmp_path / "targets", list(files), ".jpg")
    else:
        draw = floats(rng, np.float32, COUNT) if kind == "float32" else levels(rng, kind, COUNT)
        where = values = draw.transpose(2, 0, 1)[..., None]
    source = with_fields(images, target=ImageTargets(where, interpolation=interpolation))
    pipeline = ImagePipeline(size=(12, 31), ratio=(0.3, 3), interpolation="lanczos")
    with create_loader(source, pipeline=pipeline, batch_size=3, workers=0) as loader:
        batch = next(loader.batches())
    for row, number in enumerate(batch.index.tolist()):
        x, y, w, h = batch.windows[row].tolist()
        exact = np.uint8 if kind in ("uint8", "JPEG") else np.float64
        crop = torch.from_numpy(values[number][y : y + h, x : x + w].astype(exact)).permute(2, 0, 1)[None]
        if interpolation == "nearest":
            wanted = functional.interpolate(crop, (12, 31), mode="nearest-exact")
        else:
            wanted = functional.interpolate(crop, (12, 31), mode=interpolation, antialias=True)
        wanted = wanted[0].flip(2) if batch.flips[row] else wanted[0]
        found = batch.fields["target"][row].double()
        if kind != "float32":
            off = 0.0 if interpolation == "nearest" or kind != "uint16" else 0.6  # torch does not resize uint16
            assert (found - wanted.double().clamp(0, 65535)).abs().max() <= off
        else:
            assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-2)


def test_levels_are_normalised(images: Path) -> None:
    rng = np.random.default_rng(6)
    deep, pixels = (np.stack([levels(rng, kind, 3) for _ in range(COUNT)]) for kind in (np.uint16, np.uint8))
    depth = np.stack([floats(rng, np.float32) for _ in range(COUNT)])
    mean, std = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)
    source = with_fields(
        images,
        pair=ImageTargets(pixels, range=(-1, 1)),
        metres=ImageTargets(deep, range=(0, 65535 / 256)),
        sharp=ImageTargets(pixels, mean=mean, std=std),
        depth=ImageTargets(depth, mean=10, std=100),
    )
    expected = {
        "pair": pixels / 127.5 - 1,
        "metres": deep / 256,
        "sharp": (pixels / 255 - mean) / std,
        "depth": (depth[..., None] - 10) / 100,
    }
    with create_loader(source, pipeline=WHOLE, batch_size=COUNT, workers=0, dtype=torch.bfloat16) as loader:
        batch = next(iter(loader))
    assert batch["images"].dtype == torch.bfloat16
    for name, wanted in expected.items():
        assert batch[name].dtype == torch.float32
        assert batch[name].is_contiguous(memory_format=torch.channels_last)
        assert np.allclose(batch[name].permute(0, 2, 3, 1).numpy(), wanted, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_targets_stay_in_their_range(dtype: str) -> None:
    rng, highest = np.random.default_rng(0), np.iinfo(dtype).max
    levels = torch.from_numpy(np.array([0, 1, highest // 2, highest - 1, highest], dtype).reshape(1, 1, -1, 1))
    ends = [(0, 1), (-1, 1), (-0.5, 0.5), (-1, 0), *np.sort(rng.normal(0, 50, (300, 2))).tolist()]
    for low, high in ends:
        kind = ImageTargets("", dtype=dtype, channels=1, range=(low, high)).rules(Layout(1, dtype))  # type: ignore[arg-type]
        served = target_stages({"t": kind}, CPU, torch.contiguous_format)["t"](levels).flatten().numpy()
        wanted = low + (high - low) / highest * levels.flatten().numpy().astype(float)
        assert np.allclose(served, wanted, rtol=0, atol=4e-7 * max(abs(low), abs(high)))
        assert (served[0] >= np.float32(low), served[-1] <= np.float32(high)) == (True, True), (low, high)


def test_invalid_depth_stays_invalid(images: Path) -> None:
    rng = np.random.default_rng(7)
    depth = np.stack([floats(rng, np.float32) for _ in range(COUNT)])
    depth[rng.random(depth.shape) < 0.3] = np.nan
    source = with_fields(images, depth=ImageTargets(depth, interpolation="nearest", fill=float("nan")))
    pipeline = ImagePipeline(size=(40, 20), crop="letterbox", augment=Augmentations(auto_augment="rand"))
    with create_loader(source, pipeline=pipeline, batch_size=COUNT, workers=0, seed=1) as loader:
        batch = next(loader.batches())
    for row, number in enumerate(batch.index.tolist()):
        found = batch.fields["depth"][row]
        assert found.isnan().float().mean() > 0.4  # the border of the letterbox
        assert np.isin(found[~found.isnan()].numpy(), depth[number]).all()


FAULTS: dict[str, tuple[Callable[[], bytes], dict[str, Any], str]] = {
    "size": (
        lambda: saved(np.zeros((5, 9, 3), np.uint8)),
        {},
        "field 'target': the target has 9x5 pixels, but its image has 26x18, and scale=1 needs 26x18",
    ),
    "factor": (
        lambda: saved(np.zeros((2 * HEIGHT, 2 * WIDTH, 3), np.uint8)),
        {},
        "fix=pass ImageTargets(..., scale=2)",
    ),
    "bits": (
        lambda: saved(np.zeros((HEIGHT, WIDTH), np.uint16)),
        {"channels": 1},
        "the target has levels of 16 bits, but the field has dtype='uint8'",
    ),
    "channels": (
        lambda: saved(np.zeros((HEIGHT, WIDTH, 3), np.uint8)),
        {"channels": 1},
        "the target has 3 channels, but the field has channels=1",
    ),
    "floats": (lambda: npy(np.zeros((HEIGHT, WIDTH, 3))), {}, "the target has values of type float64, but the field"),
    "values": (
        lambda: npy(np.full((HEIGHT, WIDTH, 3), 256)),
        {},
        "the target has values from 256 to 256, but uint8 has 0 to 255",
    ),
    "objects": (lambda: npy(np.array([None])), {}, "the .npy file has"),
    "text": (lambda: b"no image at all", {}, "not a JPEG, PNG, WebP, BMP, GIF or TIFF"),
    "half": (lambda: saved(np.zeros((HEIGHT, WIDTH, 3), np.uint8))[:60], {}, "it was truncated"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_target_is_a_bad_sample(images: Path, tmp_path: Path, fault: str) -> None:
    bad, settings, cause = FAULTS[fault]
    settings = {"channels": 3, **settings}
    shape = (HEIGHT, WIDTH) if settings["channels"] == 1 else (HEIGHT, WIDTH, 3)
    files = [saved(np.full(shape, number, np.uint8)) for number in range(COUNT)]
    files[3] = bad()
    source = with_fields(images, target=ImageTargets(write(tmp_path / "targets", files), dtype="uint8", **settings))
    with pytest.raises(LoaderError, match=re.escape(cause)) as raised:
        serve(source)
    assert raised.value.sample == 3
    assert raised.value.path == bytes(tmp_path / "targets" / "3")
    others = serve(source, on_bad_sample="replace", shuffle=True, seed=1, drop_last=False)
    assert others.unique().tolist() == [0, 1, 2, 4, 5]
    target = serve(source, on_bad_sample="replace", pad=True)
    assert target[:, 0, 0, 0].tolist() == [0, 1, 2, 0, 4, 5]


CROPS = {
    "one view": {"pipeline": ImagePipeline(size=(8, 8), crop="random")},
    "two views": {"pipeline": [ImagePipeline(size=(8, 8), crop="random"), ImagePipeline(size=(6, 4), crop="random")]},
    "augmented": {"pipeline": ImagePipeline(size=(8, 8), crop="random", augment=Augmentations(erasing=1.0, blur=1.0))},
    "evaluation": {"pipeline": WHOLE, "pad": False, "shuffle": False},
    "own sizes": {"pipeline": ImagePipeline(size=None, crop="full", max_output_pixels=1 << 10)},
    "patches": {"pipeline": WHOLE, "patches": PatchBudget(size=2, sequence_lengths=40)},
}


@pytest.mark.parametrize("crop", CROPS)
@pytest.mark.parametrize("engine", ["threads", "hdf5", "dali"])
def test_a_batch_of_bad_samples_only_is_their_error(images: Path, tmp_path: Path, engine: str, crop: str) -> None:
    """Without padding no row of it is left, and the stages get targets [0, ...]."""
    if engine == "dali" and crop in ("own sizes", "patches"):
        pytest.skip("not served by this backend")
    own = {"cache": tmp_path / "cache.h5"} if engine == "hdf5" else {}
    settings = {"drop_last": False, **CROPS[crop], **own, **ENGINES[engine]}
    scale = 1 if crop == "patches" else 2
    side = (HEIGHT * scale, WIDTH * scale, 3)
    for name, bad in (("all", range(COUNT)), ("last", [COUNT - 1])):
        values = [np.zeros((9, 9, 3) if number in bad else side, np.uint8) for number in range(COUNT)]
        targets = write(tmp_path / name, list(map(saved, values)))
        source = with_fields(images, target=ImageTargets(targets, scale=scale, range=(0, 1)))
        if engine == "hdf5":
            own["cache"] = settings["cache"] = tmp_path / f"{name}.h5"
        for batch_size in (COUNT, 1) if name == "all" else (COUNT - 1, 1):
            with (
                pytest.raises(LoaderError, match="the target has 9x9 pixels"),
                create_loader(source, batch_size=batch_size, **settings) as loader,
            ):
                list(loader.batches())
            if name == "last":
                with create_loader(source, batch_size=batch_size, on_bad_sample="replace", **settings) as loader:
                    served = [row for batch in loader.batches() for row in batch.index.tolist()]
                assert COUNT - 1 not in served
                assert len(served) >= COUNT - 1


@pytest.mark.parametrize("decoder", ["auto", "simplejpeg", "pillow"])
def test_repaired_targets_are_counted_or_refused(tmp_path: Path, decoder: str) -> None:
    """As repaired images are; the native library leaves them to Python."""
    write_folder(tmp_path / "images", 6)
    for number in range(6):
        path = tmp_path / "targets" / f"class{number % 3}" / f"{number:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(cut(photo(number), 0.5) if number == 4 else photo(number))
    source = with_fields(tmp_path / "images", target=ImageTargets(tmp_path / "targets"))
    settings = {"pipeline": ImagePipeline(size=(30, 30), crop="full", flip=0.0), "batch_size": 6, "workers": 0}
    with create_loader(source, decoder=decoder, on_repaired="count", **settings) as loader:
        (batch,) = loader.batches()
        assert loader.stats().repaired == 1
    assert "0004.jpg" in [Path(name).name for name in batch.names]
    refused = create_loader(source, decoder=decoder, on_repaired="raise", **settings)
    with refused as loader, pytest.raises(LoaderError, match="field 'target': libjpeg repaired the target"):
        list(loader)


def test_settings_that_cannot_work_are_refused(images: Path, tmp_path: Path) -> None:
    ones = np.ones((COUNT, HEIGHT, WIDTH, 3), np.uint8)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"dtype": "int32"}, "dtype of image targets must be"),
        ({"channels": 65}, "channels of image targets must be"),
        ({"interpolation": "cubic"}, "interpolation of image targets must be"),
        ({"scale": 0}, "scale of image targets must be"),
        ({"fill": 256}, "fill of image targets must be"),
        ({"fill": (1, 2)}, "fill must be one number, or one for each of 3 channels, got (1, 2)"),
        ({"mean": 0.5}, "image targets need both mean and std, or neither"),
        ({"mean": 0.5, "std": 0.5, "range": (0, 1)}, "pass either range, or mean and std"),
        ({"range": (1, 0)}, "range must be (low, high) with low below high"),
        ({"range": (0, 1), "dtype": "float32"}, "range needs levels of uint8 or uint16"),
    ]
    for settings, message in wrong:
        with pytest.raises(ValueError, match=re.escape(message)):
            with_fields(images, target=ImageTargets(ones, **settings))
    for where, message in (
        (ones[1:], r"targets must be numbers \[6, height, width\] or"),
        (ones[..., None], "targets must be numbers"),
        (str(images / "none"), "no target for sample 0"),
        ([1] * COUNT, "the target of sample 0 must be a path, got 1: pass targets in memory as one array"),
        ("s3://bucket/targets", "targets cannot be read from 's3://bucket/targets'"),
        (write(tmp_path / "text", [b"text"] * COUNT), "no target can be decoded: .*; pass ImageTargets"),
    ):
        with pytest.raises(ValueError, match=message):
            with_fields(images, target=ImageTargets(where))
    with pytest.raises(ValueError, match=r"pass ImageTargets\(...\) for images in a folder"):
        with_fields(images, target=str(images))
    source = with_fields(images, target=ImageTargets(ones, scale=16))
    with pytest.raises(ValueError, match="target with scale=16 would have 32000 pixels: at most 16384 work"):
        create_loader(source, pipeline=ImagePipeline(size=(8, 2000), crop="random"), drop_last=False)
    with pytest.warns(UserWarning, match=r"crop='random_resized' resizes images and target \(scale=16\)"):
        create_loader(source, workers=0, drop_last=False).close()


def test_texts_of_tars_stay_texts(images: Path, tmp_path: Path) -> None:
    members = [(f"{n}.{kind}", data) for n in range(COUNT) for kind, data in (("txt", b"a text"), ("cls", b"1"))]
    source = with_fields(images, caption=open_source(write_tar(tmp_path / "a.tar", members), image="txt"))
    assert serve(source, "caption") == ["a text"] * COUNT


def test_masks_keep_their_identity(images: Path, tmp_path: Path) -> None:
    """Fields without targets have the identity, and their caches the bytes, of earlier versions."""
    kind = FieldKind(kind="mask")
    assert repr(kind) == (
        "FieldKind(kind='mask', classes=(), min_area=0.1, relative=False, of='', swaps=(), points=0, padded=False, "
        "dtype='uint8', ignore_index=255)"
    )
    source = with_fields(images, mask=Masks(np.zeros((COUNT, HEIGHT, WIDTH), np.uint8)))
    build_cache(source, tmp_path / "cache.h5", workers=0)
    about = open_cache(tmp_path / "cache.h5").about[0]
    assert b"target" not in about.pack()
    assert about.fields[0].kind == kind


def test_settings_belong_to_the_identity(images: Path) -> None:
    values = np.ones((COUNT, HEIGHT, WIDTH), np.float32)
    others: list[dict[str, Any]] = [{}, {"fill": 1}, {"interpolation": "box"}, {"mean": 1, "std": 2}, {"scale": 2}]
    sources = [with_fields(images, target=ImageTargets(values, **each)) for each in others]
    changed = with_fields(images, target=ImageTargets(values * 2))
    assert len({source.fingerprint for source in (*sources, changed)}) == len(others) + 1
    assert with_fields(images, target=ImageTargets(values.copy())).fingerprint == sources[0].fingerprint
    with pytest.raises(ValueError, match="joined sources must have equal fields"):
        concat(sources[:2])
