"""Path patterns: the files that they match, in order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from folder_trees import plant

from penstock.loaders.data.files.path_patterns import expand_pattern, is_pattern
from penstock.pipelines.errors import LoaderError


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (b"a.tar", [b"a.tar"]),
        (b"a-{3..5}.tar", [b"a-3.tar", b"a-4.tar", b"a-5.tar"]),
        (b"a-{008..010}.tar", [b"a-008.tar", b"a-009.tar", b"a-010.tar"]),
        (b"{b,a}/{0..1}", [b"b/0", b"b/1", b"a/0", b"a/1"]),
        (b"a-{1..2,7}", [b"a-1", b"a-2", b"a-7"]),
    ],
)
def test_braces_are_expanded_in_their_order(pattern: bytes, names: list[bytes]) -> None:
    assert expand_pattern(pattern) == names


def test_wildcards_match_sorted_files(tmp_path: Path) -> None:
    plant(tmp_path, ["b/2.tar", "a/1.tar", "a/x.txt", "a/deep/3.tar"])
    root = os.fsencode(tmp_path)
    assert expand_pattern(root + b"/*/*.tar") == [root + b"/a/1.tar", root + b"/b/2.tar"]
    assert root + b"/a/deep/3.tar" in expand_pattern(root + b"/**/*.tar")
    assert expand_pattern(root + b"/{b,a}/?.tar") == [root + b"/b/2.tar", root + b"/a/1.tar"]
    with pytest.raises(LoaderError, match="no file matches") as caught:
        expand_pattern(root + b"/*.zip")
    assert caught.value.code == "E-NODATA"


def test_an_existing_file_with_that_name_is_not_a_pattern(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/odd[1]{2}.tar"
    assert is_pattern(name)
    Path(os.fsdecode(name)).touch()
    assert not is_pattern(name)


@pytest.mark.parametrize("pattern", [b"{5..3}", b"{0..99999999}", b"{0..9999}{0..9999}"])
def test_implausible_ranges_are_refused(pattern: bytes) -> None:
    with pytest.raises(ValueError, match=r"range|expands to"):
        expand_pattern(pattern)
