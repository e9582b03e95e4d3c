"""Columns of a table: what is chosen without a word, what is asked for, and what is said if nothing fits."""

from __future__ import annotations

import pytest

from penstock.loaders.data.tables.table_columns import IMAGE_COLUMNS, LABEL_COLUMNS, choose_columns


def test_names_in_common_use_are_found_in_their_order() -> None:
    for at, name in enumerate(IMAGE_COLUMNS):
        assert choose_columns([*IMAGE_COLUMNS[: at - len(IMAGE_COLUMNS) - 1 : -1], "label"], None, None, "t")[0] == name
    for at, name in enumerate(LABEL_COLUMNS):
        columns = ["path", *LABEL_COLUMNS[: at - len(LABEL_COLUMNS) - 1 : -1]]
        assert choose_columns(columns, None, None, "t")[1] == name
    assert choose_columns(["Class", "File_Name"], None, None, "t") == ("File_Name", "Class")
    assert choose_columns(["path"], None, None, "t") == ("path", None)
    assert choose_columns(["path", "image"], "path", "image", "t") == ("path", "image")
    assert choose_columns(["label", "y"], "label", None, "t") == ("label", "y")


@pytest.mark.parametrize(
    ("columns", "image", "label", "text"),
    [
        (
            ["a", "b"],
            None,
            None,
            "no column of t is known to hold images: its columns are 'a', 'b'; name one with image=",
        ),
        (["a", "image_file"], None, None, "'image_file'; pass image='image_file'"),
        (["pixels"], None, None, "pass image='pixels'"),
        (["path", "label"], "paths", None, "image='paths' is not a column of t: .* 'path', 'label'; pass image='path'"),
        (["path", "species"], None, "Specie", "label='Specie' is not a column of t: .*; pass label='species'"),
        (["a/1.JPG", "0"], None, None, "the first line of a table must be the names of its columns"),
    ],
)
def test_columns_that_are_not_there(columns: list[str], image: str | None, label: str | None, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        choose_columns(columns, image, label, "t")


def test_labels_that_may_be_overlooked_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="of one class: its columns are 'species', 'labels'; pass label='labels'"):
        assert choose_columns(["path", "species", "labels"], None, None, "t") == ("path", None)
