"""Rules for labels in each container, through the public API: numbers, names, and no row that vanishes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch
from odd_images import encoded
from PIL import Image
from source_kinds import TABLES, Rows, Where

from penstock.loaders import Column, concat, create_loader, open_source, with_fields, with_labels
from penstock.pipelines import ImagePipeline
from penstock.pipelines.errors import LoaderError

WHOLE = ImagePipeline(size=(8, 8), crop="full", flip=0.0)
CONTAINERS = ["csv", "tsv", "jsonl", "parquet of paths", "parquet", "feather", "frame", "list"]
WITH_COLUMNS = [container for container in CONTAINERS if container != "list"]


def png(number: int) -> bytes:
    return encoded(Image.new("RGB", (8, 8), (number,) * 3), "PNG")


PICTURES = [png(number) for number in range(24)]


@pytest.fixture(autouse=True)
def pictures(tmp_path: Path) -> None:
    for number, data in enumerate(PICTURES):
        (tmp_path / f"{number}.png").write_bytes(data)


def pair_containers(*values: Any) -> list[tuple[str, Any]]:
    """Pair every container with the first value, and one container with the others: all parse text alike."""
    return [(container, values[0]) for container in CONTAINERS] + [("jsonl", value) for value in values[1:]]


def write(container: str, tmp: Path, labels: list[Any]) -> Any:
    """Store pictures with these labels; return the argument that opens them."""
    names = [f"{number}.png" for number in range(len(labels))]
    return TABLES[container](Where(tmp), Rows(PICTURES[: len(labels)], {"label": labels}, names))[0]


def table(tmp: Path, labels: Any, name: str = "path") -> pa.Table:
    return pa.table({name: [str(tmp / f"{n}.png") for n in range(len(labels))], "label": labels})


def serve(data: Any, **options: Any) -> tuple[list[Any], list[Any], tuple[str, ...]]:
    """Return the pictures served in an epoch, their labels, and the classes."""
    settings: dict[str, Any] = {"pipeline": WHOLE, "batch_size": 4, "workers": 0, "drop_last": False}
    with create_loader(data, **settings, **options) as loader:
        batches = [(images[:, 0, 4, 4], labels) for images, labels in loader]
        levels = [value for images, _ in batches for value in (images * 0.229 * 255 + 0.485 * 255).round().tolist()]
        return levels, [label for _, labels in batches for label in labels.tolist()], loader.classes


@pytest.mark.parametrize("container", CONTAINERS)
def test_digits_are_numbers_in_every_container(tmp_path: Path, container: str) -> None:
    data = write(container, tmp_path, [str(number) for number in range(12)])
    assert serve(data) == (list(range(12)), list(range(12)), tuple(map(str, range(12))))


@pytest.mark.parametrize(("container", "odd"), pair_containers("1,5", "NA", "5%", "1O", "nan", "[1 2]"))
def test_text_that_is_not_a_number_among_numbers_is_named(tmp_path: Path, container: str, odd: str) -> None:
    data = write(container, tmp_path, [*map(str, range(12)), odd])
    with pytest.raises(LoaderError, match=r"(line 1[34]|row 1[23]): label '.*(is a name, but label|is nearly)"):
        open_source(data)
    names = [odd, *map(str, range(12))]  # listed classes are names
    assert serve(data, classes=names)[1] == [*range(1, 13), 0]


@pytest.mark.parametrize(
    ("container", "labels"),
    pair_containers(
        ["1" * 350, "0.5", "1"], ["1" * 60, "0.5", "1"], ["0.5", "1", "-" + "1" * 60], ["0.5", "1", "-" + "1" * 350]
    ),
)
def test_an_integer_too_large_for_a_float_is_named(tmp_path: Path, container: str, labels: list[Any]) -> None:
    with pytest.raises(LoaderError, match=r"(line|row) [0-4]: label .* is not a finite number"):
        open_source(write(container, tmp_path, labels))


@pytest.mark.parametrize("container", CONTAINERS)
def test_text_of_floats_and_integers_is_read_as_floats(tmp_path: Path, container: str) -> None:
    labels = ["-1", "0.5", "3", "-1", "1e-3", "7"]
    assert serve(write(container, tmp_path, labels))[1] == pytest.approx([-1, 0.5, 3, -1, 1e-3, 7])


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize(
    ("labels", "cause", "kept"),
    [
        ([2, None, 0, None], "no label; 2 of 4 rows have none", ([0, 2], [2, 0])),
        ([2, -1, 0, None], "(no label|label -1 .*); 2 of 4 rows have none", ([0, 2], [2, 0])),
        (["b", None, "a", "b"], "no label", ([0, 2, 3], [1, 0, 1])),
        ([0.5, None, 1.5, -1.0], "no label", ([0, 2, 3], [0.5, 1.5, -1])),
    ],
)
def test_rows_without_a_label_are_refused_or_left_out_with_a_warning(
    tmp_path: Path, container: str, labels: list[Any], cause: str, kept: tuple[list[int], list[Any]]
) -> None:
    data = write(container, tmp_path, labels)
    with pytest.raises(LoaderError, match=rf"(line|row) \d: {cause}: fix=.*missing_labels='leave_out'"):
        open_source(data)
    count = len(labels) - len(kept[0])
    for _ in range(2):  # also from a saved index
        with pytest.warns(UserWarning, match=f"left out: {count} rows? without a label"):
            served = serve(data, missing_labels="leave_out")
        assert served[:2] == kept


@pytest.mark.parametrize("container", WITH_COLUMNS)
def test_a_column_of_integers_is_read_as_floats_on_request(tmp_path: Path, container: str) -> None:
    data = write(container, tmp_path, [-2, 0, 2, -3, 1, -1])
    with pytest.raises(LoaderError, match=r"label -2 is negative, so it is not a class.*label='COLUMN:float'"):
        open_source(data)
    assert serve(data, label="label:float")[1] == [-2, 0, 2, -3, 1, -1]
    both = open_source(data, label={"score": "label:float"}).targets(np.arange(2))  # type: ignore[attr-defined]
    assert (both["score"].dtype, both["score"].tolist()) == (np.float32, [-2, 0])
    named = open_source(data, label=["label:float"]).targets(np.arange(2))  # type: ignore[attr-defined]
    assert named["label"].tolist() == [-2, 0]


def test_a_column_named_with_the_float_suffix_is_used_itself(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,age,age:float\n0.png,1,a\n1.png,0,b\n")
    assert serve(tmp_path / "t.csv", label="age:float")[1:] == ([0, 1], ("a", "b"))


def test_a_row_that_was_filtered_out_needs_no_label(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset(table(tmp_path, [1, -1, 0, None], "image"))
    assert serve(data.select([2, 0]), label="label")[:2] == ([2, 0], [0, 1])
    with pytest.raises(LoaderError, match="row 1: label -1 is negative"):
        open_source(data.select([2, 1]), label="label")


@pytest.mark.parametrize(
    ("container", "text"), pair_containers("{'a': 1}", "['a' 'b']", "{'a'}", "tensor(3)", "np.int64(3)", "'7'")
)
def test_values_that_programs_print_are_not_class_names(tmp_path: Path, container: str, text: str) -> None:
    with pytest.raises(LoaderError, match=r"(row|line) [0-3].* is (nearly|a printed value).*classes="):
        open_source(write(container, tmp_path, ["cat", text]))
    assert serve(write(container, tmp_path, ["cat", text]), classes=[text, "cat"])[1] == [1, 0]


def test_rows_between_stray_quotes_are_not_a_label(tmp_path: Path) -> None:
    rows = ["0.png,cat", '1.png,"cat', "2.png,dog", '3.png,disk 5"', "4.png,dog"]
    (tmp_path / "t.csv").write_text("path,label\n" + "\n".join(rows) + "\n")
    with pytest.raises(LoaderError, match=r"line 5: label .* is more than one line"):
        open_source(tmp_path / "t.csv")
    texts = ["cat", "a cat\r\nin two lines"]
    for container in CONTAINERS[2:]:
        with pytest.raises(LoaderError, match=r"(row|line) [12]: label .* is more than one line"):
            open_source(write(container, tmp_path, texts))
        assert serve(write(container, tmp_path, texts), classes=texts[::-1])[1] == [1, 0]


SETS = CONTAINERS[2:]


@pytest.mark.parametrize("container", SETS)
def test_white_space_in_lists_of_names_is_stripped(tmp_path: Path, container: str) -> None:
    labels = [["sea "], ["sky", " sea"], [], ["sky"]]
    assert serve(write(container, tmp_path, labels))[1:] == ([[1, 0], [1, 1], [0, 0], [0, 1]], ("sea", "sky"))
    assert serve(write(container, tmp_path, [["sea "], ["sky"]]), classes=["sky", "sea "])[1] == [[0, 1], [1, 0]]
    with pytest.raises(LoaderError, match=r"(row|line) [12].*a list of labels contains an empty name"):
        open_source(write(container, tmp_path, [["sea"], [""]]))


@pytest.mark.parametrize("twin", ["label", "key", "caption"])
@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "images.parquet", "t.feather", "frame"])
def test_two_columns_of_one_name_are_refused(tmp_path: Path, name: str, twin: str) -> None:
    pandas = pytest.importorskip("pandas")
    images = [(tmp_path / f"{n}.png").read_bytes() for n in range(3)]
    key = {"images.parquet": "image", "t.feather": "image"}.get(name, "path")
    twin = key if twin == "key" else twin
    first = [f"{n}.png" for n in range(3)] if key == "path" else images
    columns = {key: first, "label": [0, 1, 2], "caption": ["a", "b", "c"]}
    names, values = [*columns, twin], [*columns.values(), columns[twin]]
    data: Any = tmp_path / name
    if name == "t.csv":
        lines = [names, *zip(*values, strict=True)]
        data.write_text("".join(",".join(map(str, line)) + "\n" for line in lines))
    elif name == "frame":
        data = pandas.concat([pandas.Series(column) for column in values], axis=1, keys=names)
    elif name == "t.feather":
        table = pa.Table.from_arrays(list(map(pa.array, values)), names)
        with pa.OSFile(str(data), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    else:
        pq.write_table(pa.Table.from_arrays(list(map(pa.array, values)), names), data)
    options = {} if name == "t.csv" or key == "image" else {"root": tmp_path}
    with pytest.raises(ValueError, match=f"2 columns of the table are named '{twin}'"):
        with_fields(data, text=Column("caption" if twin == "caption" else "label"), **options)
    if twin == "caption":  # not requested
        assert len(open_source(data, **options)) == 3
        return
    for label in {} if name == "frame" else {"label": "label"}, {"label": ["label"]}:
        with pytest.raises(ValueError, match=f"2 columns of the table are named '{twin}'"):
            open_source(data, **label, **options)


@pytest.mark.parametrize("name", ["t.parquet", "t.feather", "images.parquet", "frame"])
def test_categories_and_dictionaries_keep_their_order_and_follow_the_rules(tmp_path: Path, name: str) -> None:
    pandas = pytest.importorskip("pandas")

    def hold(categories: list[str], labels: list[str]) -> Any:
        images = [(tmp_path / f"{n}.png").read_bytes() for n in range(len(labels))]
        column = pandas.Categorical(labels, categories=categories)
        frame = pandas.DataFrame({"path": [str(tmp_path / f"{n}.png") for n in range(len(labels))], "label": column})
        if name == "images.parquet":
            frame["image"] = images
            frame = frame.drop(columns="path")
        if name.endswith("parquet"):
            frame.to_parquet(tmp_path / name)
        elif name == "t.feather":
            pyarrow.feather.write_feather(frame.assign(image=images), tmp_path / name, compression="uncompressed")
        return frame if name == "frame" else tmp_path / name

    order = ["low", "middle", "high"]
    assert serve(hold(order, ["high", "low", "high"]))[1:] == ([2, 0, 2], tuple(order))
    assert serve(hold(order, ["high", "low"]), classes=["high", "low"])[1:] == ([0, 1], ("high", "low"))
    with pytest.raises(LoaderError, match=r"label 'b' is a name, but label '10' of .*row [01] is a number"):
        open_source(hold(["b", "10", "2"], ["10", "b", "2"]))
    with pytest.raises(LoaderError, match="label '1,5' is nearly a number"):
        open_source(hold(["b", "1,5"], ["b", "1,5"]))
    with pytest.raises(LoaderError, match=r"row [12]: no label"):
        open_source(hold(["b", "", "a"], ["b", "", "a"]))
    assert serve(hold(["b ", "b", "a"], ["b", "b ", "a"]))[1:] == ([0, 0, 1], ("b", "a"))
    assert serve(hold(["b", "10"], ["10", "b"]), classes=["10", "b"])[1] == [0, 1]


def test_categories_without_a_frame_keep_their_order(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    column = pandas.Series(pandas.Categorical(["high", "low", "high"], categories=["low", "middle", "high"]))
    paths = [str(tmp_path / f"{n}.png") for n in range(3)]
    pixels = np.zeros((3, 8, 8, 3), np.uint8)
    for labels in column, column.array:
        for data in (paths, labels), with_labels(paths, labels), (pixels, labels):
            assert serve(data)[1:] == ([2, 0, 2], ("low", "middle", "high"))
        assert serve((paths, labels), classes=["high", "low"])[1] == [0, 1, 0]
    for data in (paths, {"a": column, "b": [1, 2, 3]}), with_labels(paths, {"a": column, "b": [1, 2, 3]}):
        assert open_source(data).label_classes["a"] == (b"low", b"middle", b"high")


def test_lists_of_dictionary_values_become_sets_and_negative_members_are_refused(tmp_path: Path) -> None:
    images = [(tmp_path / f"{n}.png").read_bytes() for n in range(2)]
    coded = pa.array([["b"], ["a", "b"]], pa.list_(pa.dictionary(pa.int32(), pa.string())))
    pq.write_table(pa.table({"image": images, "label": coded}), tmp_path / "coded.parquet")
    assert serve(tmp_path / "coded.parquet")[1:] == ([[0, 1], [1, 1]], ("a", "b"))
    datasets = pytest.importorskip("datasets")
    kind = datasets.Sequence(datasets.ClassLabel(names=["b", "a"]))
    features = datasets.Features({"image": datasets.Value("binary"), "label": kind})
    data = datasets.Dataset.from_dict({"image": images, "label": [[1], [0, -1]]}, features=features)
    for options in {}, {"classes": ["a", "b"]}:
        with pytest.raises(LoaderError, match="row 1: label -1"):
            open_source(data, **options)


@pytest.mark.parametrize("container", CONTAINERS)
def test_texts_that_each_become_a_class_warn(tmp_path: Path, container: str) -> None:
    captions = [f"a photo of {number}" for number in range(20)]
    data = write(container, tmp_path, captions)
    for _ in range(2):  # also from a saved index
        with pytest.warns(UserWarning, match="labels of 20 samples are 20 different names, such as 'a photo of 0'"):
            open_source(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_source(data, classes=captions)
        open_source(write(container, tmp_path, [f"class {number % 5}" for number in range(20)]))
        open_source(write(container, tmp_path, list(range(20))))


def test_a_json_lines_column_that_only_later_rows_have_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"path": "0.png"}\n{"path": "1.png", "label": 1}\n')
    with pytest.raises(LoaderError, match=r"line 2: it has 'label', but line 1 does not"):
        open_source(path)


def test_a_changed_list_keeps_the_numbers_of_listed_digits(tmp_path: Path) -> None:
    source: Any = open_source(write("list", tmp_path, ["7", 3, "7"]), classes=["7", "3"])
    (tmp_path / "data/1.png").write_bytes(PICTURES[20] + b"x")
    again = source.refreshed()
    assert again is not source
    assert (again.labels(np.arange(3)).tolist(), again.classes) == ([0, 1, 0], (b"7", b"3"))


def test_labels_in_arrays_follow_the_rules(tmp_path: Path) -> None:
    images = np.zeros((3, 8, 8, 3), np.uint8)
    assert serve((images, ["10", "9", "2"]))[1] == [10, 9, 2]
    assert serve((images, np.array([7, 3, 7])), classes=["7", "3"])[1:] == ([0, 1, 0], ("7", "3"))
    assert serve((images, [0, 0.5, 1]))[1] == [0, 0.5, 1]  # the kind follows from all rows
    for truth in ([True, False, True], np.array([True, False, True]), torch.tensor([True, False, True])):
        assert serve((images, truth))[1:] == ([1, 0, 1], ("False", "True"))
    masked = np.ma.masked_array([0, 1, 1], [False, True, False])
    with pytest.raises(ValueError, match="sample 1: no label"):
        with_labels((images, [0, 0, 0]), masked)
    for labels, cause in (
        ([0, "a", 1], "label 'a' is a name, but label 0"),
        ([0, None, 1], "sample 1: no label"),
        (masked, "sample 1: no label"),
    ):
        with pytest.raises(ValueError, match=cause):
            open_source((images, labels))


def test_class_numbers_joined_with_names_warn_that_they_change(tmp_path: Path) -> None:
    numbers, names = (open_source(write("list", tmp_path, labels)) for labels in ([0, 2], ["+", "a"]))
    with pytest.warns(UserWarning, match="class 0 of one source, named '0', is now class 1"):
        joined = concat([numbers, names])
    assert joined.classes == (b"+", b"0", b"1", b"2", b"a")


def test_class_numbers_joined_with_names_warn_that_they_are_other_classes(tmp_path: Path) -> None:
    data = [write("list", tmp_path, labels) for labels in ([0, 2, 1], ["a", "c"])]
    with pytest.warns(UserWarning, match="class '0' of one source and 'a' of another are two classes"):
        joined = concat(data)
    assert joined.labels(np.arange(5)).tolist() == [0, 2, 1, 3, 4]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        named = concat(data, classes=["a", "b", "c"])
    assert named.labels(np.arange(5)).tolist() == [0, 2, 1, 0, 2]
    assert named.classes == (b"a", b"b", b"c")


def test_data_without_labels_joined_with_labelled_data_warns(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{number}.png") for number in range(3)]
    labelled = write("list", tmp_path, ["cat", "dog"])
    for data in ([open_source(labelled), open_source(paths)], [open_source(paths), open_source(labelled)]):
        message = r"1 of 2 joined sources have no labels: all their images are in class 0, named '\.'"
        with pytest.warns(UserWarning, match=message):
            joined = concat(data)
        assert joined.classes == (b".", b"cat", b"dog")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert concat([open_source(paths), open_source(paths[:1])]).classes == (b".",)
        concat([open_source(labelled), with_labels(paths, ["dog"] * 3)])


def test_integers_that_could_be_class_numbers_or_names_warn(tmp_path: Path) -> None:
    """Folders "0" to "11" are sorted as text: label 2 means class 4 by name, or folder "10" by number."""
    names = sorted(map(str, range(12)))
    pixels, labels = np.zeros((12, 8, 8, 3), np.uint8), list(range(12))
    message = "label 2 is read as the class named '2', which classes= lists as class 4"
    stored = (write(container, tmp_path, labels) for container in ("list", "frame", "parquet of paths"))
    for data in *stored, (pixels, labels):
        with pytest.warns(UserWarning, match=message):
            assert serve(data, classes=names)[1] == [names.index(str(label)) for label in labels]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        serve(write("list", tmp_path, list(map(str, labels))), classes=names)  # text labels are names
        serve(write("list", tmp_path, labels), classes=list(map(str, labels)))
        serve(write("list", tmp_path, [7, 3]), classes=["7", "3"])  # 7 is not a class number
