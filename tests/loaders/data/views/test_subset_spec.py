"""Valid values of `subset=` and the indices that they mean."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.loaders.data.views.subset_spec import is_slice, parse_subset
from penstock.pipelines.errors import LoaderError

N = 30


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (":0.9", range(27)),
        ("0.9:", range(27, N)),
        ("0.1:0.5", range(3, 15)),
        ("10%:50%", range(3, 15)),
        ("2.5% : 100%", range(N)),
        ("10:20", range(10, 20)),
        (":1000", range(N)),
        ("::10", range(0, N, 10)),
        (":1", range(1)),
        (":1.0", range(N)),
        ("-5:", range(25, N)),
        ("-0.1:", range(27, N)),
        (":-0.1", range(27)),
        ("-0.01:", (29,)),  # the counterpart of ":0.99", not of ":0"
        ("::-1", range(N - 1, -1, -1)),
        (slice(3, 9, 2), (3, 5, 7)),
        (slice(None, 0.5), range(15)),
        (slice(np.float64(0.3), None), range(9, N)),
        (range(29, 0, -7), (29, 22, 15, 8, 1)),
        ([4, 2, 9], (4, 2, 9)),
        ((4, 2), (4, 2)),
        (np.array([7, 1], np.uint8), (7, 1)),
        (torch.tensor([5, 3]), (5, 3)),
        (np.arange(N) % 7 == 0, (0, 7, 14, 21, 28)),
        (torch.arange(N) == 8, (8,)),
        ([number == 3 for number in range(N)], (3,)),
        ([], ()),
        ("20:10", ()),
    ],
    ids=str,
)
def test_specs_mean_these_indices(spec: Any, expected: Any) -> None:
    found = parse_subset(spec, N)
    assert found.tolist() == list(expected)
    assert found.dtype == np.int64


def test_parts_that_meet_at_a_fraction_contain_each_sample_once() -> None:
    dice = random.Random(5)
    for _ in range(300):
        count, cut = dice.randrange(1, 5000), dice.choice((f"{dice.random():.3f}", f"{dice.uniform(0, 100):.2f}%"))
        first, second = parse_subset(f":{cut}", count), parse_subset(f"{cut}:", count)
        assert [*first, *second] == list(range(count)), (count, cut)
        share = float(cut.rstrip("%")) / (100 if "%" in cut else 1)
        assert abs(len(first) - share * count) < 1
    assert len(parse_subset(":0.29", 100)) == 29  # 0.29 * 100 is 28.999999999999996


def test_indices_are_read_from_files(tmp_path: Path) -> None:
    np.save(tmp_path / "some.npy", np.array([3, 1]))
    np.save(tmp_path / "mask.npy", np.arange(N) == 4)
    (tmp_path / "some.txt").write_text("3\n1\n")
    (tmp_path / "some.JSON").write_text(json.dumps([3, 1]))
    for name, expected in (("some.npy", [3, 1]), ("mask.npy", [4]), ("some.txt", [3, 1]), ("some.JSON", [3, 1])):
        for spec in (tmp_path / name, str(tmp_path / name)):
            assert parse_subset(spec, N).tolist() == expected
            assert not is_slice(spec)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b"1\ncat/2.jpg\n"),
        ("a.json", b'{"a": 1}'),
        ("a.npy", b""),
        ("a.npy", b"not numpy"),
        ("a.json", b"\xff"),
    ],
)
def test_a_file_without_indices_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name}' must contain indices"):
        parse_subset(tmp_path / name, N)


def test_a_missing_or_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoaderError, match=r"E-NODATA.*no such file of indices"):
        parse_subset(tmp_path / "absent.npy", N)
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(LoaderError, match=r"E-ACCESS.*Is a directory"):
        parse_subset(tmp_path / "folder.txt", N)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ([0, 30], r"indices must be from 0 to 29, got 30"),
        ([5, -1], r"got -1"),
        (range(20, 40), r"got 30"),
        ([3, 4, 3, 3], r"3 occurs 3 times: pass numpy\.unique"),
        ([1, 0] * 15, r"a mask must contain True and False, got 0 and 1"),
        ([True, False], r"one value per sample, 30, got 2"),
        ([0.5], r"subset must be indices, a mask"),
        ([[1], [2]], r"subset must be"),
        ([[1], [2, 3]], r"subset must be"),
        (["1"], r"subset must be"),
        (5, r"':5'"),
        (0.9, r"':0\.9'"),
        (True, r"subset must be"),
        ({1, 2}, r"sorted\(indices\)"),
        ("", r"subset must be"),
        ("5", r"subset must be"),
        ("train", r"subset must be"),
        ("a:b", r"subset must be"),
        ("1:2:3:4", r"subset must be"),
        (":1.5", r"at most 1, got 1\.5"),
        ("-150%:", r"at most 1"),
        ("::0", r"a nonzero step"),
        (slice(0, 9, 0.5), r"a nonzero step"),
        (slice("a", None), r"must have integers or fractions"),
    ],
    ids=str,
)
def test_invalid_specs_are_refused(spec: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_subset(spec, N)


def test_only_slices_are_slices() -> None:
    assert all(map(is_slice, (":0.9", slice(3), range(3))))
    assert not any(map(is_slice, ([1], np.arange(3), Path("a.npy"), "a.npy")))
