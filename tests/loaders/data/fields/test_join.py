"""Masks and texts are joined to images by name: each sample gets its own, or the refusal contains both names."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from odd_images import encoded
from PIL import Image
from tar_files import write_tar

from penstock.loaders import Masks, concat, open_source, with_fields
from penstock.loaders.data.sources.contract import Source

PIECES = ("a", "b", "1", "2.840", "frame", "x-y")


def png(level: int) -> bytes:
    return encoded(Image.new("L", (2, 2), level), "PNG")


def level_of(data: Any) -> int:
    with Image.open(io.BytesIO(data)) as image:
        return int(np.asarray(image.convert("L"))[0, 0])


def random_name(rng: np.random.Generator) -> str:
    parts = rng.choice(PIECES, rng.integers(1, 4)).tolist()
    return "".join(
        part + ("" if at == len(parts) - 1 else rng.choice(["/", ".", "_"])) for at, part in enumerate(parts)
    )


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def pairs(source: Source) -> list[tuple[int, int]]:
    """The levels of each image and its mask."""
    return [(level_of(source.read(index)), level_of(source.mask("mask", index))) for index in range(len(source))]  # type: ignore[attr-defined]


def outcome(make: Callable[[], Source]) -> list[tuple[int, int]] | str:
    try:
        return pairs(make())
    except ValueError as error:
        return str(error)


def draw_data(rng: np.random.Generator) -> tuple[list[dict[str, int]], bool]:
    """Draw up to three containers (image name -> level); also return whether every name occurs once."""
    containers, level = [], 1
    for _ in range(rng.integers(1, 4)):
        names = {f"c/{random_name(rng)}" for _ in range(rng.integers(1, 5))}  # all in one class folder
        names = {name for name in names if not any(other.startswith(f"{name}/") for other in names)}
        containers.append({name: level + at for at, name in enumerate(sorted(names))})
        level += len(names)
    names = [name for container in containers for name in container]
    return containers, len(set(names)) == len(names)


@pytest.mark.parametrize("seed", range(60))
def test_masks_of_random_folders_are_joined_or_refused(tmp_path: Path, seed: int) -> None:
    """Up to three folders as one source: masks have the same names, or a name in two folders is refused."""
    rng = np.random.default_rng(seed)
    containers, are_unique = draw_data(rng)
    images, masks = [], []
    for number, names in enumerate(containers):
        suffix = rng.choice(["png", "bmp", "gif"])
        images.append(write_files(tmp_path / f"i{number}", {f"{name}.png": png(at) for name, at in names.items()}))
        masks.append(write_files(tmp_path / f"m{number}", {f"{name}.{suffix}": png(at) for name, at in names.items()}))
    found = outcome(lambda: with_fields(concat(images), mask=concat(masks[::-1])))
    check(found, are_unique, containers)
    alone = outcome(lambda: with_fields(images[0], mask=masks[0]))
    check(alone, True, containers)


@pytest.mark.parametrize("seed", range(60))
def test_masks_of_random_tars_are_joined_or_refused(tmp_path: Path, seed: int) -> None:
    """Up to three shards that may repeat keys: masks are joined within shards of the same name."""
    rng = np.random.default_rng(seed)
    containers, are_unique = draw_data(rng)
    same_names = bool(rng.integers(2))
    for number, names in enumerate(containers):
        keys = {f"{at}/{name.replace('.', '-')}": level for at, (name, level) in enumerate(names.items())}
        of_images, of_masks = (
            tmp_path / kind / f"{number}.tar" for kind in ("images", "images" if same_names else "m")
        )
        members = [(f"{key}.png", png(level)) for key, level in keys.items()]
        masks = [(f"{key}.seg.png", png(level)) for key, level in keys.items()]
        rng.shuffle(masks)
        for path in (of_images, of_masks):
            path.parent.mkdir(exist_ok=True)
        if same_names:
            write_tar(of_images, [member for both in zip(members, sorted(masks), strict=True) for member in both])
        else:
            write_tar(of_images, members)
            write_tar(of_masks.with_name(f"masks-{number}.tar"), masks)
    images = open_source(tmp_path / "images", image="png", label=None)
    others = open_source(tmp_path / ("images" if same_names else "m"), image="seg.png", label=None)
    keys_of = [{f"{at}/{name.replace('.', '-')}" for at, name in enumerate(names)} for names in containers]
    are_unique = len(set.union(*keys_of)) == sum(map(len, keys_of))
    check(outcome(lambda: with_fields(images, mask=Masks(others))), are_unique or same_names, containers)


def check(found: list[tuple[int, int]] | str, is_right: bool, containers: list[dict[str, int]]) -> None:
    """Require that each image has its own mask, or that the refusal names a key that occurs twice."""
    if is_right:
        assert not isinstance(found, str), found
        assert len(found) > 0
        assert all(image == mask for image, mask in found)
    else:
        assert isinstance(found, str), f"served {found}"
        assert "have the key" in found
        assert containers


def test_two_images_do_not_share_a_mask(tmp_path: Path) -> None:
    images = write_files(tmp_path / "i", {"a.png": png(1), "a.bmp": png(2)})
    masks = write_files(tmp_path / "m", {"a.png": png(1), "a_seg.png": png(1), "a.txt": b"0 0.5 0.5 0.5 0.5"})
    for fields in (
        {"mask": masks},
        {"mask": f"{masks}/{{name}}_seg.png"},
        {"yolo": masks},
        {"mask": open_source(masks)},
    ):
        with pytest.raises(ValueError, match=r"two samples have the key 'a': .*a\.bmp'? and .*a\.png"):
            with_fields(images, **fields)


def test_two_masks_of_one_name_are_refused_and_a_photo_next_to_them_is_not_one(tmp_path: Path) -> None:
    images = write_files(tmp_path / "i", {"a.png": png(1)})
    masks = write_files(tmp_path / "m", {"a.png": png(1), "a.jpg": b"a photo", "a.json": b"{}"})
    assert outcome(lambda: with_fields(images, mask=masks)) == [(1, 1)]
    write_files(masks, {"a.bmp": png(2)})
    with pytest.raises(ValueError, match=r"two masks have the same name .*'a\.png' and 'a\.bmp'"):
        with_fields(images, mask=masks)


def test_a_sample_without_a_partner_is_named(tmp_path: Path) -> None:
    images = write_files(tmp_path / "i", {"a.1.png": png(1), "a.2.png": png(2)})
    masks = write_files(tmp_path / "m", {"a.1.png": png(1), "a.png": png(3)})
    for where in (masks, open_source(masks)):
        with pytest.raises(ValueError, match=r"no mask for sample 1 \(.*a\.2\.png'?\)"):
            with_fields(images, mask=where)


@pytest.mark.parametrize("dotted", ["images", "masks"])
def test_names_in_a_tar_of_a_folder_equal_the_file_names(tmp_path: Path, dotted: str) -> None:
    """GNU tar writes ./a.png for files of "."; the other data set has a.png."""
    names = {"images": ["b/a.png", "b/c.png"], "masks": ["b/a.png", "b/c.png"]}
    names[dotted] = [f"./{name}" for name in names[dotted]]
    tars = {}
    for kind, members in names.items():
        write_tar(tmp_path / f"{kind}.tar", [(name, png(7 * at)) for at, name in enumerate(members)])
        tars[kind] = open_source(tmp_path / f"{kind}.tar", image="png", label=None)
    assert pairs(with_fields(tars["images"], mask=Masks(tars["masks"]))) == [(0, 0), (7, 7)]
    folder = write_files(tmp_path / "m", {"b/a.png": png(0), "b/c.png": png(7)})
    assert pairs(with_fields(tars["images"], mask=folder)) == [(0, 0), (7, 7)]


def test_rows_are_joined_only_with_tables_of_the_same_number_of_rows(tmp_path: Path) -> None:
    """Parquet rows do not have names: row 3 of a table with more rows may be another sample."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def table(name: str, levels: list[int]) -> Path:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        parquet.write_table(pa.table({"image": [png(level) for level in levels]}), tmp_path / name)
        return tmp_path / name

    def opened(where: Any, **options: Any) -> Source:
        return open_source(str(where), label=None, **options)

    images = opened(table("images.parquet", [0, 1, 2]))
    masks, longer = opened(table("masks.parquet", [0, 1, 2])), opened(table("longer.parquet", [3, 0, 1, 2]))
    assert pairs(with_fields(images, mask=masks)) == [(0, 0), (1, 1), (2, 2)]
    assert pairs(with_fields(opened(tmp_path / "images.parquet", subset=[2, 0]), mask=masks)) == [(2, 2), (0, 0)]
    columns = {"image": [png(0), png(1), png(2)], "mask": [png(5), png(6), png(7)], "label": [0, None, 1]}
    parquet.write_table(pa.table(columns), tmp_path / "both.parquet")
    labelled = {"image": "image", "label": "label", "missing_labels": "leave_out"}
    with pytest.warns(UserWarning, match="without a label"):
        part = open_source(tmp_path / "both.parquet", **labelled)
    both = with_fields(part, mask=opened(tmp_path / "both.parquet", image="mask"))
    assert pairs(both) == [(0, 5), (2, 7)]
    with pytest.raises(
        ValueError, match=r"only identified by their rows, but the rows are 3 in 1 file .*and 4 in 1 file"
    ):
        with_fields(images, mask=longer)
    for name, levels in (
        ("a/0", [0, 1]),
        ("a/1", [2, 3]),
        ("b/0", [0, 1]),
        ("b/1", [2, 3]),
        ("c/0", [0, 1, 2]),
        ("c/1", [3, 4]),
    ):
        table(f"{name}.parquet", levels)
    sharded = opened(tmp_path / "a" / "*.parquet")
    assert pairs(with_fields(sharded, mask=opened(tmp_path / "b" / "*.parquet"))) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    with pytest.raises(ValueError, match=r"4 in 2 files .*and 5 in 2 files"):
        with_fields(sharded, mask=opened(tmp_path / "c" / "*.parquet"))
    for part in (0, 1):
        table(f"d/mask-{part}.parquet", [2 * part, 2 * part + 1])
    with pytest.raises(
        ValueError, match=r"4 in 2 files \(first '0.parquet'\) and 4 in 2 files \(first 'mask-0.parquet'\)"
    ):
        with_fields(sharded, mask=opened(tmp_path / "d" / "*.parquet"))
