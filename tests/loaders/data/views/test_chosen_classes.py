"""classes= gives any data the class numbers of another data set, by name."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from odd_images import encoded
from PIL import Image
from source_kinds import KINDS, Rows, Where
from tar_files import write_tar

from penstock.loaders import concat, create_loader, mix, open_source, with_labels
from penstock.loaders.data.sources.contract import Source
from penstock.pipelines import ImagePipeline

NAMES = ["ant", "bee", "cat", "dog"]
FORMS = ["folder", "list of folders", "pattern", "csv", "list", "tars", "parquet", "arrow", "torchvision"]


def png(level: int) -> bytes:
    return encoded(Image.new("RGB", (4, 4), (level, level, level)), "PNG")


def write(root: Path, labels: list[str], kind: str) -> Any:
    """Write one image per label; its level is 10 times the label's position in NAMES."""
    root.mkdir(exist_ok=True)
    rows = Rows.of([png(10 * NAMES.index(label)) for label in labels], labels, "png")
    like = {"list of folders": "folder", "torchvision": "list"}.get(kind, kind)
    spec, _ = KINDS[like].write(Where(root), rows)
    if kind == "torchvision":
        found = sorted(set(labels))
        return SimpleNamespace(classes=found, samples=[(path, found.index(label)) for path, label in spec])
    return [spec] if kind == "list of folders" else spec


def has_names(source: Source, classes: list[str]) -> bool:
    """Return whether each image's label is the position in `classes` of the name given by its level."""
    labels = source.labels(np.arange(len(source))).tolist()
    levels = [Image.open(io.BytesIO(source.read(index))).getpixel((0, 0))[0] for index in range(len(source))]  # type: ignore[arg-type]
    return [classes[label] for label in labels] == [NAMES[level // 10] for level in levels]


@pytest.mark.parametrize("kind", FORMS)
def test_every_kind_of_data_accepts_classes(tmp_path: Path, kind: str) -> None:
    """Four random lists per kind: extra names are allowed, missing names are refused."""
    rng = np.random.default_rng(1)
    for number in range(4):
        labels = rng.choice(NAMES, rng.integers(1, 7)).tolist()
        data = write(tmp_path / str(number), labels, kind)
        classes = rng.permutation([*set(labels), *rng.choice(["eel", "fox"], 1)]).tolist()
        source = open_source(data, classes=classes)
        assert source.classes == tuple(name.encode() for name in classes)
        assert has_names(source, classes)
        missing = labels[0]
        with pytest.raises((ValueError, RuntimeError), match=missing):
            open_source(data, classes=[name for name in classes if name != missing])


def test_an_open_source_accepts_classes(tmp_path: Path) -> None:
    """Also joined sources, and a mix, which keeps its shares."""
    one, two = (open_source(write(tmp_path / name, [name, "bee"], "folder")) for name in ("ant", "dog"))
    classes = ["dog", "eel", "ant", "bee"]
    for source in (concat([one, two]), mix({"one": (one, 0.5), "two": (two, 0.5)})):
        chosen: Any = open_source(source, classes=classes)
        assert has_names(chosen, classes)
        assert getattr(chosen, "mixture", None) == getattr(source, "mixture", None)
    assert has_names(concat([one, two], classes=classes), classes)
    with pytest.raises(TypeError, match="does not accept options, got rescan"):
        open_source(one, classes=classes, rescan=True)


def test_a_list_equal_to_the_datas_own_classes_changes_nothing(tmp_path: Path) -> None:
    data = write(tmp_path, NAMES, "folder")
    plain = open_source(data)
    assert open_source(data, classes=NAMES).fingerprint == plain.fingerprint
    assert open_source(data, classes=NAMES[::-1]).fingerprint != plain.fingerprint
    assert open_source(data, classes=plain.classes).fingerprint == plain.fingerprint


def test_class_numbers_get_the_listed_names(tmp_path: Path) -> None:
    table = pa.table({"image": [png(0), png(20)], "label": [0, 2]})
    parquet.write_table(table, tmp_path / "a.parquet")
    source = open_source(tmp_path / "a.parquet", classes=NAMES)
    assert source.classes == tuple(name.encode() for name in NAMES)
    assert has_names(source, NAMES)
    with pytest.raises((ValueError, RuntimeError), match="2"):
        open_source(tmp_path / "a.parquet", classes=NAMES[:2])


@pytest.mark.parametrize("suffix", ["csv", "tar"])
def test_a_list_of_files_maps_numbers_to_classes_like_a_single_file(tmp_path: Path, suffix: str) -> None:
    """The classes are called 1, 2 and 5: label 1 is the class called 1, not class number 1."""
    data, numbers = tmp_path / f"a.{suffix}", [5, 1, 2]
    if suffix == "tar":
        write_tar(data, [m for n in numbers for m in ((f"{n}.png", png(n)), (f"{n}.cls", b"%d" % n))])
    else:
        data.write_text("path,label\n" + "".join(f"{n}.png,{n}\n" for n in numbers))
        for n in numbers:
            (tmp_path / f"{n}.png").write_bytes(png(n))
    found = [["1", "2", "5", "10", "20", "50"].index(str(n)) for n in numbers]
    for spec in (data, [data], [data, str(data)]):
        source = open_source(spec, classes=["1", "2", "5", "10", "20", "50"])
        assert source.labels(np.arange(3)).tolist() == found
    with pytest.raises(ValueError, match="from 0 to 5, and classes lists '1' as a name, which is ambiguous"):
        open_source(open_source(data), classes=["1", "2", "5", "10", "20", "50"])


def test_a_loader_and_a_cache_serve_the_chosen_numbers(tmp_path: Path) -> None:
    data, classes = write(tmp_path, ["cat", "bee"], "folder"), ["cat", "ant", "bee"]
    for options in ({"backend": "torch"}, {"backend": "hdf5", "cache": tmp_path / "c.h5"}):
        pipeline = ImagePipeline(size=(4, 4), crop="full", flip=0.0)
        with create_loader(data, classes=classes, pipeline=pipeline, batch_size=2, workers=0, **options) as loader:
            ((_, labels),) = loader
            assert (labels.tolist(), loader.classes) == ([2, 0], tuple(classes))


WRONG: list[Any] = ["ant", [], [1, 2], {"ant", "bee", "cat", "dog"}, dict(zip(NAMES, range(4), strict=True))]
WRONG += [dict(enumerate(NAMES)), ["ant", "ant", "bee", "cat", "dog"]]


@pytest.mark.parametrize("classes", WRONG)
@pytest.mark.parametrize("kind", FORMS)
def test_invalid_lists_of_classes_are_refused(tmp_path: Path, kind: str, classes: Any) -> None:
    """A set does not have an order; the numbers of a dict may contradict the order of its names."""
    with pytest.raises(ValueError, match=r"^classes must"):
        open_source(write(tmp_path, NAMES, kind), classes=classes)
    with pytest.raises(ValueError, match=r"^classes must"):
        with_labels(write(tmp_path, NAMES, kind), NAMES, classes=classes)
    if classes != WRONG[-1]:  # class numbers may have the same name
        with pytest.raises(ValueError, match=r"^classes must"):
            open_source((np.zeros((4, 4, 4, 3), np.uint8), [0, 1, 2, 3]), classes=classes)


@pytest.mark.parametrize("kind", FORMS)
def test_sequences_of_other_types_are_accepted_as_lists(tmp_path: Path, kind: str) -> None:
    data, order = write(tmp_path, NAMES, kind), NAMES[::-1]
    for classes in np.array(order), (name for name in order), dict.fromkeys(order).keys(), [n.encode() for n in order]:
        assert has_names(open_source(data, classes=classes), order)
    assert has_names(with_labels(data, NAMES, classes=iter(order)), order)


def test_two_classes_with_the_same_name_are_not_merged(tmp_path: Path) -> None:
    rows = [(str(tmp_path / f"{number}.png"), number) for number in range(2)]
    for number, (path, _) in enumerate(rows):
        Path(path).write_bytes(png(number))
    cranes, others = open_source(rows, classes=["crane", "crane"]), open_source(rows, classes=["owl", "tern"])
    for parts in ([cranes, others], [others, cranes], [cranes, open_source(rows, classes=["crane", "owl"])]):
        with pytest.raises(ValueError, match="two classes of one source are named 'crane'"):
            concat(parts)
    both = concat([cranes, cranes])
    assert both.labels(np.arange(4)).tolist() == [0, 1, 0, 1]


def test_folders_named_by_numbers_warn_that_they_are_sorted_as_text(tmp_path: Path) -> None:
    for name in ("2", "9", "10"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(png(1))
    with pytest.warns(UserWarning, match="sorted as text, '10' before '2'"):
        source = open_source(tmp_path)
    assert source.classes == (b"10", b"2", b"9")
    assert open_source(tmp_path, classes=["2", "9", "10"]).labels(np.arange(3)).tolist() == [2, 0, 1]
