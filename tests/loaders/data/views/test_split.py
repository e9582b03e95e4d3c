"""Splits: exact shares, no overlap, no sample that ever moves; tested on seeded random data."""

from __future__ import annotations

import hashlib
import json
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from faulty_source import FaultySource
from photo_folder import write_folder
from tar_files import write_tar

from penstock.loaders import open_source, split
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.data.files.arrays import ArraySource
from penstock.loaders.data.sources.data import Data, as_data
from penstock.loaders.data.views.split import _fit_thresholds, hash_names
from penstock.pipelines.errors import LoaderError

Sample = tuple[bytes, bytes]  # name and class


class Named(FaultySource):
    """A source with only names and classes."""

    def __init__(self, samples: list[Sample]) -> None:
        super().__init__(len(samples), {})
        self.samples = samples
        self.classes = tuple(sorted({of_class for _, of_class in samples}))
        self.fingerprint = hashlib.blake2b(repr(samples).encode(), digest_size=8).hexdigest()
        number_of = {name: number for number, name in enumerate(self.classes)}
        self._labels = np.array([number_of[of_class] for _, of_class in samples], np.int64)

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._labels[indices]

    def name(self, index: int) -> bytes:
        return self.samples[index][0]


def make_samples(dice: random.Random, count: int, classes: int, begin: int = 0) -> list[Sample]:
    return [(b"%d.jpg" % (begin + n), b"class%d" % dice.randrange(classes)) for n in range(count)]


def place(parts: tuple[Data, ...]) -> dict[bytes, int]:
    """Return name -> number of its part."""
    return {part.name(i): number for number, part in enumerate(parts) for i in range(len(part))}


def random_shares(dice: random.Random) -> Any:
    if dice.random() < 0.5:
        return round(dice.uniform(0.2, 0.95), 2)
    first = round(dice.uniform(0.3, 0.7), 2)
    return (first, round((1 - first) / 2, 3), round(1 - first - round((1 - first) / 2, 3), 3))


# ---- properties of every split ----


@pytest.mark.parametrize("by_class", [True, False])
def test_parts_are_disjoint_ordered_and_have_exact_shares(by_class: bool) -> None:
    dice = random.Random(11)
    for _ in range(30):
        source = Named(make_samples(dice, dice.randrange(40, 400), dice.randrange(1, 8)))
        shares = random_shares(dice)
        parts = split(source, shares, seed=dice.randrange(1 << 64), by_class=by_class)
        assert sorted(np.concatenate([part.indices for part in parts]).tolist()) == list(range(len(source)))
        assert all((np.diff(part.indices) > 0).all() for part in parts)
        whole = np.bincount(source.labels(np.arange(len(source))), minlength=len(source.classes))
        counts = [np.bincount(part.labels(np.arange(len(part))), minlength=len(source.classes)) for part in parts]
        wanted = shares if isinstance(shares, tuple) else (shares, 1 - shares)
        for share, count in zip(wanted, counts, strict=True):
            if by_class:
                assert (np.abs(count - share * whole) <= 1.01).all(), (share, count, whole)
                assert (count[whole >= len(wanted)] >= 1).all()
            else:
                assert abs(count.sum() - share * whole.sum()) <= 1.01


def test_a_class_with_as_many_samples_as_parts_has_one_in_each() -> None:
    samples = [(b"%d" % n, b"a") for n in range(500)] + [(b"x%d" % n, b"b") for n in range(3)]
    for seed in range(20):
        parts = split(Named(samples), (0.98, 0.01, 0.01), seed=seed)
        assert [(part.labels(np.arange(len(part))) == 1).sum() for part in parts] == [1, 1, 1]
    train, _ = split(Named([*samples, (b"alone", b"c")]))
    assert 2 in train.labels(np.arange(len(train)))


def test_a_split_does_not_depend_on_order_place_and_other_classes() -> None:
    dice = random.Random(3)
    for _ in range(20):
        samples = make_samples(dice, 120, 4)
        before = place(split(Named(samples)))
        assert place(split(Named(dice.sample(samples, len(samples))))) == before
        one = [sample for sample in samples if sample[1] != b"class2"]
        assert place(split(Named(one))) == {name: before[name] for name, _ in one}


def test_another_seed_draws_independent_parts() -> None:
    source = Named(make_samples(random.Random(1), 2000, 1))
    first, second = (split(source, 0.5, seed=seed)[0] for seed in (0, 1))
    common = len(np.intersect1d(first.indices, second.indices))
    assert 400 < common < 600
    assert split(source, 0.5, seed=0)[0].fingerprint == first.fingerprint != second.fingerprint


def test_names_that_occur_twice_are_in_the_same_part() -> None:
    dice = random.Random(8)
    samples = make_samples(dice, 300, 3)
    twice = Named([*samples, *samples[::2]])
    for by_class in (True, False):
        parts = split(twice, by_class=by_class)
        names = [{part.name(i) for i in range(len(part))} for part in parts]
        assert not names[0] & names[1]


# ---- saved splits ----


@pytest.mark.parametrize("by_class", [True, False])
def test_no_sample_ever_moves(tmp_path: Path, by_class: bool) -> None:
    dice = random.Random(21)
    for round_ in range(10):
        file = tmp_path / f"{round_}.json"
        shares = random_shares(dice)
        samples = make_samples(dice, dice.randrange(60, 200), 3)
        options: dict[str, Any] = {"seed": round_, "by_class": by_class, "save": file}
        known = place(split(Named(samples), shares, **options))
        saved = file.read_bytes()
        for step in range(1, 5):
            added = make_samples(dice, dice.randrange(1, 80), 5, begin=1000 * step)  # with two new classes
            samples = dice.sample([*samples, *added], len(samples) + len(added))
            now = place(split(Named(samples), shares, **options))
            assert {name: now[name] for name in known} == known
            known = now
        assert place(split(Named(samples), shares, **options)) == known
        assert file.read_bytes() == saved


def test_added_samples_follow_the_shares(tmp_path: Path) -> None:
    dice = random.Random(4)
    split(Named(make_samples(dice, 3000, 3)), (0.7, 0.2, 0.1), save=tmp_path / "cut.json")
    later = Named(make_samples(dice, 20_000, 4, begin=10_000))  # with one new class
    parts = split(later, (0.7, 0.2, 0.1), save=tmp_path / "cut.json")
    for number in range(4):
        shares = [(part.labels(np.arange(len(part))) == number).mean() * len(part) for part in parts]
        assert np.allclose(np.array(shares) / sum(shares), (0.7, 0.2, 0.1), atol=0.05), number


def test_a_class_that_was_too_small_later_joins_every_part(tmp_path: Path) -> None:
    samples = [(b"%d" % n, b"a") for n in range(100)]
    split(Named([*samples, (b"alone", b"b")]), save=tmp_path / "cut.json")
    more = Named([*samples, (b"alone", b"b"), *((b"b%d" % n, b"b") for n in range(200))])
    _, validation = split(more, save=tmp_path / "cut.json")
    assert 8 <= (validation.labels(np.arange(len(validation))) == 1).sum() <= 34


def test_settings_that_differ_from_the_saved_ones_are_named(tmp_path: Path) -> None:
    source, file = Named(make_samples(random.Random(0), 100, 2)), tmp_path / "cut.json"
    split(source, 0.8, seed=3, save=file)
    for settings, message in (
        ({"parts": 0.9, "seed": 3}, r"parts=\[0.8, 0.2\], but \[0.9, 0.1\] was requested"),
        ({"parts": 0.8}, r"seed=3, but 0 was requested"),
        ({"parts": 0.8, "seed": 3, "by_class": False}, r"by_class=True, but False was requested"),
        ({"parts": (0.8, 0.1, 0.1), "seed": 3}, r"parts="),
    ):
        with pytest.raises(LoaderError, match=rf"E-STATE.*cut\.json.*{message}"):
            split(source, save=file, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"thresholds": {"class0": ["zz"]}},
        {"thresholds": {"class0": []}},
        {"thresholds": {"class0": ["1" * 17]}},
        {"thresholds": {"class0": ["-1"]}},
        {"thresholds": []},
        {"seed": "0"},
        {"parts": [1.0], "thresholds": {"class0": []}},
        {"format": "penstock split 2"},
    ],
    ids=str,
)
def test_a_file_that_is_not_a_split_is_refused_and_kept(tmp_path: Path, change: dict[str, Any]) -> None:
    source, file = Named(make_samples(random.Random(0), 100, 2)), tmp_path / "cut.json"
    split(source, save=file)
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(LoaderError, match=r"E-STATE"):
        split(source, save=file)
    file.write_text("{")
    with pytest.raises(LoaderError, match=r"E-STATE.*cannot be read"):
        split(source, save=file)
    assert file.read_text() == "{"


def test_a_path_that_cannot_be_written_is_refused_before_the_names_are_read(tmp_path: Path) -> None:
    class Unread(Named):
        def name(self, index: int) -> bytes:
            raise AssertionError

    (tmp_path / "file").touch()
    with pytest.raises(LoaderError, match=r"E-MISUSE.*is a file, not a folder"):
        split(Unread([(b"a", b"a"), (b"b", b"a")]), save=tmp_path / "file" / "cut.json")


def test_class_names_may_be_any_bytes_and_repeat(tmp_path: Path) -> None:
    odd = [b"\xff\xfe", b"", "é".encode(), b"\xff\xfe"]
    images = np.zeros((80, 4, 4, 3), np.uint8)
    source = ArraySource(images, np.arange(80) % 4, classes=odd)
    parts = [split(source, save=tmp_path / "cut.json") for _ in range(2)]
    assert place(parts[0]) == place(parts[1])
    counts = np.bincount(parts[0][1].labels(np.arange(8)), minlength=4)
    assert (counts[1], counts[2], counts[0] + counts[3]) == (2, 2, 4)


def test_the_hash_is_blake2b_of_the_name_under_the_seed() -> None:
    key = b"penstock split 1" + (7).to_bytes(8, "little")
    expected = int.from_bytes(hashlib.blake2b(b"cat/1.jpg", digest_size=8, key=key).digest(), "little")
    assert hash_names(Named([(b"cat/1.jpg", b"cat")]), 7).tolist() == [expected]


# ---- kinds of data ----


def test_a_folder_its_copy_its_cache_and_its_subset_have_the_same_split(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos", 40)
    write_folder(tmp_path / "moved" / "elsewhere", 40)
    build_cache(open_source(tmp_path / "photos"), tmp_path / "all.h5", workers=0)
    parts = place(split(tmp_path / "photos"))
    assert len(parts) == 40
    assert place(split(tmp_path / "moved" / "elsewhere")) == parts
    assert place(split(tmp_path / "all.h5")) == parts
    assert place(split(Data([open_source(tmp_path / "photos")], joined=True))) == parts
    everything = open_source(tmp_path / "photos", subset="::-1")
    assert place(split(everything)) == parts


def test_arrays_are_split_by_index_and_added_images_move_none(tmp_path: Path) -> None:
    images = np.zeros((200, 4, 4, 3), np.uint8)
    labels = np.arange(200) % 3
    before = split((images[:100], labels[:100]), save=tmp_path / "cut.json")
    after = split((images, labels), save=tmp_path / "cut.json")
    for small, large in zip(before, after, strict=True):
        assert small.indices.tolist() == large.indices[large.indices < 100].tolist()


# ---- refusals ----


@pytest.mark.parametrize(
    "parts", [0, 1, -0.1, 1.1, (0.5, 0.4), (0.9, 0.2), (1.0, 0.0), (1.0,), (), "0.9", None, ("a", "b"), float("nan")]
)
def test_impossible_shares_are_refused(parts: Any) -> None:
    with pytest.raises(ValueError, match="share"):
        split(Named([(b"a", b"a"), (b"b", b"a")]), parts)


def test_the_sum_of_shares_may_differ_from_1_by_rounding() -> None:
    source = Named([(b"%d" % n, b"a") for n in range(30)])
    assert [len(part) for part in split(source, (1 / 3, 1 / 3, 1 / 3))] == [10, 10, 10]
    assert [len(part) for part in split(source, np.array([0.7, 0.2, 0.1]))] == [21, 6, 3]


def test_an_empty_part_is_an_error() -> None:
    with pytest.raises(LoaderError, match=r"E-NODATA.*part 2 of the split.*by_class=False"):
        split(Named([(b"%d" % n, b"class%d" % n) for n in range(30)]))
    train, validation = split(Named([(b"%d" % n, b"class%d" % n) for n in range(30)]), by_class=False)
    assert (len(train), len(validation)) == (27, 3)


def test_rows_added_to_a_table_move_no_sample(tmp_path: Path) -> None:
    def write_table(folders: list[str]) -> None:
        lines = [f"{folder}/{i}.jpg,{i % 2}" for folder in folders for i in range(30)]
        (tmp_path / "train.csv").write_text("\n".join(["path,label", *lines]))

    for folder in ("p/one", "q"):  # the deepest common folder changes
        for i in range(30):
            path = tmp_path / folder / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"%d" % i)
    write_table(["p/one"])
    before = split(tmp_path / "train.csv", 0.7, save=tmp_path / "cut.json")
    write_table(["q", "p/one"])
    after = split(tmp_path / "train.csv", 0.7, save=tmp_path / "cut.json")
    for old, new in zip(before, after, strict=True):
        assert {old.path(i) for i in range(len(old))} <= {new.path(i) for i in range(len(new))}


def test_thresholds_are_adjusted_only_where_the_samples_require_it() -> None:
    """A tenth of one sample is none; a tenth of ten is the first one, although its hash exceeds the plain threshold."""
    hashes, groups = np.array([50, *range(10, 20)], np.uint64), np.array([0, *[1] * 10])
    shares, plain = (Fraction(1, 10), Fraction(9, 10)), np.array([3], np.uint64)
    assert _fit_thresholds(hashes, groups, 2, shares, plain).tolist() == [[3], [11]]


# ---- a file in several classes ----


@pytest.mark.filterwarnings("ignore:.*listed several times with different labels")
@pytest.mark.parametrize("container", ["list", "csv"])
def test_a_file_listed_in_several_classes_is_in_one_part(tmp_path: Path, container: str) -> None:
    paths = sorted(map(str, write_folder(tmp_path / "photos", 40).rglob("*.jpg")))
    twice = paths[::2]
    rows = [(path, "a") for path in paths] + [(path, "b") for path in twice]
    data: Any = rows
    if container == "csv":
        data = tmp_path / "dup.csv"
        data.write_text("path,kind\n" + "".join(f"{path},{kind}\n" for path, kind in rows))
    source = open_source(data, **({"label": "kind"} if container == "csv" else {}))
    for seed in range(5):
        save = tmp_path / f"cut{seed}.json"
        parts = split(source, 0.7, seed=seed, save=save)
        train, val = ({part.path(index) for index in range(len(part))} for part in parts)
        assert not train & val
        assert len(train) == round(0.7 * len(paths))
        again = split(as_data(source).take(np.arange(len(source))[::-1]), 0.7, seed=seed, save=save)
        assert [sorted(map(part.path, range(len(part)))) for part in again] == [
            sorted(map(part.path, range(len(part)))) for part in parts
        ]


def test_samples_of_several_tars_that_share_a_key_are_split_by_class(tmp_path: Path) -> None:
    photo = next(write_folder(tmp_path / "photos", 1).rglob("*.jpg")).read_bytes()
    for name in ("cat", "dog"):
        write_tar(
            tmp_path / f"{name}.tar", [(f"a/{number}.jpg", photo) for number in range(10 if name == "cat" else 4)]
        )
    source = open_source(f"{tmp_path}/*.tar", label="shard")
    train, _ = split(source, 0.5, save=tmp_path / "cut.json")
    assert np.bincount(train.labels(np.arange(len(train)))).tolist() == [5, 2]
    assert set(json.loads((tmp_path / "cut.json").read_text())["thresholds"]) == {"cat", "dog"}
