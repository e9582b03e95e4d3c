"""Members of a sample: joined by key at any position, compared with an independent reference."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tar_files import END, entry, refusal_of, webdataset_samples, write_tar

from penstock.loaders import open_source
from penstock.loaders.data.sources.contract import has_targets
from penstock.loaders.data.tars.tar_samples import NO_RANK, UNREAD, find_role
from penstock.pipelines.errors import LoaderError

left_out = pytest.mark.filterwarnings("ignore:.*left out:UserWarning")
Files = Sequence[tuple[str | bytes, bytes]]


def serve(path: Path, **options: Any) -> dict[str, tuple[bytes, Any]]:
    """Return name -> content and label (class name or number) of each sample."""
    source = open_source(path, **options)
    some = np.arange(len(source))
    targets = getattr(source, "targets", None)
    labels = source.labels(some).tolist() if targets is None or not has_targets(source) else targets(some).tolist()
    names = [os.fsdecode(name) for name in source.classes]
    found = {}
    for index, label in enumerate(labels):
        name = source.name(index).decode("utf-8", "surrogateescape")  # type: ignore[attr-defined]
        found[name] = source.read(index), names[label] if names else label
    assert len(found) == len(source)
    return found


def make_members(members: Iterable[str], suffix: str = "cls") -> Files:
    """Return members with different contents and a label for every image."""
    return [(name, name[-5:-4].encode() if name.endswith(suffix) else name.encode()) for name in members]


# ---- keys ----


@left_out
def test_samples_equal_those_of_webdataset(tmp_path: Path) -> None:
    random_ = random.Random(3)
    suffixes = ["PNG", "seg.png", "json", "txt", "a.b.c", "npy"]
    for trial in range(30):
        files: list[tuple[str | bytes, bytes]] = []
        for number in range(random_.randrange(1, 20)):
            folder = random_.choice(["", "a/", "a/b.c/", "./", "\udcff/"])
            key = folder + random_.choice([f"k{number}", f"n-{number}", "k" * 300 + str(number)])
            parts = ["cls", "JPG", *random_.sample(suffixes, random_.randrange(1, 6))]
            random_.shuffle(parts)
            contents = {"cls": b"%d" % (number % 3)}
            files += [(f"{key}.{s}", contents.get(s, os.fsencode(f"{key}.{s}"))) for s in parts]
            files += [("README", b""), ("__meta__", b"")] * (number == 3)
        path = write_tar(tmp_path / f"{trial}.tar", files)
        expected = {(sample["jpg"], sample["cls"].decode()) for sample in webdataset_samples(path)}
        assert set(serve(path).values()) == expected, trial


IMAGES, LABELS = [f"{k}.png" for k in range(6)], [f"{k}.cls" for k in range(6)]


def test_member_names_with_and_without_a_leading_dot_slash_are_joined(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", make_members([*IMAGES, *(f"./{name}" for name in LABELS)]))
    assert {name: label for name, (_, label) in serve(path).items()} == {name: name[0] for name in IMAGES}


def test_labels_are_read_in_the_order_of_the_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On object storage, each backward seek would be a request."""
    files = [(name, content.ljust(9000)) for name, content in make_members(LABELS[::-1] + IMAGES)]
    path = write_tar(tmp_path / "x.tar", files)
    starts, pread = [], os.pread

    def note(fd: int, count: int, start: int) -> bytes:
        starts.append(start)
        return pread(fd, count, start)

    monkeypatch.setattr(os, "pread", note)
    open_source(path)
    assert starts == sorted(starts)
    assert len(starts) >= 12


def test_members_in_another_folder_than_their_images_warn(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", make_members(["images/0.png", "images/1.png", "labels/0.txt", "labels/1.txt"]))
    with pytest.warns(UserWarning, match=r"left out: 2 samples without an image \('labels/0.txt'\)"):
        open_source(path)


@left_out
def test_hidden_files_do_not_belong_to_samples(tmp_path: Path) -> None:
    names = [b"._a.jpg", b"a.jpg", b"._a.cls", b"b/.hidden.jpg", b"__MACOSX/b/c.jpg", b".git/x.jpg", b"./b/c.jpg"]
    (tmp_path / "x.tar").write_bytes(b"".join(map(entry, names)) + END)
    source = open_source(tmp_path / "x.tar", label="shard")
    assert [source.name(index) for index in range(len(source))] == [b"a.jpg", b"./b/c.jpg"]  # type: ignore[attr-defined]
    assert source.skipped == {"hidden": 5}


# ---- names with dots ----


@pytest.mark.parametrize(
    "form", ["img.{}.jpg", "2023.{:02d}.jpg", "IMG.2024.05.{:02d}.JPG", "v1.0_{}.jpg", "a.{}.b.jpg"]
)
@pytest.mark.parametrize("label", ["folder", "cls", "json:x"])
def test_images_that_differ_by_a_number_are_samples(tmp_path: Path, form: str, label: str) -> None:
    expected, files = {}, []
    for folder in ("cat", "dog"):
        for number in range(5):
            name = f"{folder}/{form.format(number)}"
            files.append((name, name.encode()))
            stem = name.rpartition(".")[0]
            files += [(f"{stem}.cls", b"%d" % (number % 2))] * (label == "cls")
            files += [(f"{stem}.json", json.dumps({"x": f"{number}"}).encode())] * (label == "json:x")
            expected[name] = name.encode(), {"folder": folder, "cls": f"{number % 2}", "json:x": f"{number}"}[label]
    random.Random(1).shuffle(files)
    path = write_tar(tmp_path / "x.tar", files)
    assert serve(path, label=label) == expected
    table = {name.rpartition(".")[0]: name for name in expected}
    assert {name: label for name, (_, label) in serve(path, label=table).items()} == {name: name for name in expected}


def test_the_option_image_names_a_suffix_of_names_with_dots(tmp_path: Path) -> None:
    files = [(f"img.{k}.{s}", f"{k}{s}".encode()) for k in range(3) for s in ("jpg", "txt")]
    path = write_tar(tmp_path / "x.tar", files)
    for suffix in ("jpg", "txt"):
        names = [f"img.{k}.{suffix}" for k in range(3)]
        assert list(serve(path, image=suffix)) == names
    error = refusal_of(write_tar(tmp_path / "y.tar", [*files, ("img.left.jpg", b"")]), image="jpg")
    assert "at the first dot: 'img.0.jpg' and 'img.left.jpg'" in error.cause


def test_labels_of_names_with_a_dot_are_found(tmp_path: Path) -> None:
    """By WebDataset's rule, their suffix would be .photo.cls."""
    path = write_tar(tmp_path / "x.tar", make_members(["0.photo.png", "0.photo.cls", "1.photo.png", "1.photo.cls"]))
    assert {name: len(label) for name, (_, label) in serve(path).items()} == {"0.photo.png": 1, "1.photo.png": 1}
    assert serve(path, label="cls") == serve(path)


@pytest.mark.parametrize(
    ("members", "image"),
    [
        (["0.left.jpg", "0.right.jpg"], "left.jpg"),
        (["0.right.jpg", "1.jpg", "0.left.jpg"], "right.jpg"),
        (["0.jpg", "0.seg.jpg", "1.1.jpg", "1.2.jpg"], "jpg"),
        (["0.a1.jpg", "0.a2.jpg", "0.b1.jpg"], "a1.jpg"),
        (["0.photo.jpg", "0.photo.cls", "0.mask.jpg"], "photo.jpg"),
    ],
)
def test_several_images_of_one_key_are_refused_with_a_fix(tmp_path: Path, members: list[str], image: str) -> None:
    path = write_tar(tmp_path / "x.tar", make_members(members))
    error = refusal_of(path)
    assert error.code == "E-FORMAT"
    assert "two images have the same key, which ends at the first dot: '" in error.cause
    assert f"image='{image}'" in error.fix
    assert "image='*.jpg' if each is a sample" in error.fix
    every = [name for name in members if name.endswith("jpg")]
    found = serve(path, image="*.jpg", label="shard")
    assert {name: content for name, (content, _) in found.items()} == {name: name.encode() for name in every}


def test_the_option_chooses_among_images_of_one_key(tmp_path: Path) -> None:
    members = [f"{k}.{side}.{s}" for k in (0, 1) for side in ("left", "right") for s in ("jpg", "cls")]
    path = write_tar(tmp_path / "x.tar", [(name, name[2:3].encode()) for name in members])
    assert "pass label='left.cls'" in refusal_of(path, image="left.jpg").fix
    for side in ("left", "right"):
        found = serve(path, image=f"{side}.jpg", label=f"{side}.cls")
        assert {name: label for name, (_, label) in found.items()} == {f"{k}.{side}.jpg": side[0] for k in (0, 1)}


@pytest.mark.parametrize(
    ("suffixes", "wanted", "chosen"),
    [
        ("cls jpg json", "", "jpg"),
        ("png jpg", "", "jpg"),
        ("png jpeg", "", "jpeg"),
        ("png jfif", "", "jfif"),
        ("png webp bmp", "", "webp"),
        ("webp jpe", "", "jpe"),
        ("gif bmp png", "", "png"),
        ("mask.jpg png", "", "png"),
        ("seg.png left.jpg", "", "left.jpg"),
        ("png jpg", "png", "png"),
        ("left.jpg right.jpg", "right.jpg", "right.jpg"),
        ("png webp", "jpg png", "png"),
        ("jpg", "png", None),
        ("cls txt ppm npy jpgs heic", "", None),
    ],
)
def test_the_image_of_a_sample_is_chosen_by_its_suffix(suffixes: str, wanted: str, chosen: str | None) -> None:
    ranks = {suffix: find_role(suffix.encode(), wanted.encode().split(), ()).rank for suffix in suffixes.split()}
    best = min(ranks, key=lambda suffix: ranks[suffix])
    assert (best if ranks[best] < UNREAD else None) == chosen
    assert list(ranks.values()).count(ranks[best]) == 1 or ranks[best] in (UNREAD, NO_RANK)


# ---- random tars ----

NUM_RANDOM = 250
_PLAIN, _DOTTED = ("{}", "n{:04d}", "\u00e9 {}"), ("img.{}", "2024.{:03d}", "v1.0_{}", "a.b{}.c")


class Truth:
    """Draw a set of tars: its samples, and the members that store them. The loader sees only the members.

    Attributes:
        place: where the labels are.
        tars: members of each.
        samples: image name -> (content, label as text); None for a sample without a label.
        must_serve: whether nothing is missing, repeated or ambiguous.
    """

    def __init__(self, draw: random.Random) -> None:
        self.place = draw.choice(["cls", "cls", "class", "json:label", "json:label", "json:cls", "folder", "none"])
        self.has_members = self.place not in ("folder", "none")
        form, kind = draw.choice(draw.choice((_PLAIN, _PLAIN, _DOTTED))), draw.choice(["number", "name"])
        parent, suffix = draw.choice(["", "x/", "./", "x.y/z/"]), draw.choice(["jpg", "png", "JPEG", "webp"])
        extras = draw.sample(["txt", "txt" if "json" in self.place else "json", "npy"], draw.randrange(3))
        self.tars: list[list[tuple[str, bytes]]] = []
        self.samples: dict[str, tuple[bytes, str | None]] = {}
        self.must_serve = True
        first = draw.randrange(5)
        for _ in range(draw.randrange(1, 4)):
            members: list[tuple[str, bytes]] = []
            for number in range(first, first + draw.randrange(2, 7)):
                label = str(number % 3) if kind == "number" else "abc"[number % 3] * 2
                key = f"{parent}{label}/" * (self.place == "folder") + parent * (self.place != "folder")
                key += form.format(number)
                members += self._draw_sample(draw, key, suffix, label)
                members += [(f"{key}.{extra}", b'{"caption": "cls"}') for extra in dict.fromkeys(extras)]
            first += 10
            self.tars.append(members)
        self._spoil(draw)
        for members in self.tars:
            if draw.random() < 0.7:
                draw.shuffle(members)

    def _draw_sample(self, draw: random.Random, key: str, suffix: str, label: str) -> Iterable[tuple[str, bytes]]:
        content = f"image {key} {draw.random()}".encode()
        self.samples[f"{key}.{suffix}"] = content, None if self.place == "none" else label
        yield f"{key}.{suffix}", content
        if self.place.startswith("json:"):
            value: Any = int(label) if label.isdigit() else label
            yield f"{key}.json", json.dumps({"caption": "x", self.place[5:]: value}).encode()
        elif self.has_members:
            yield f"{key}.{self.place}", label.encode() + draw.choice([b"", b"\n"])

    def _spoil(self, draw: random.Random) -> None:
        """In half of the sets, remove something or add an ambiguous or unread member."""
        what = draw.choice(["label", "image", "twice", "second image", "heic", "tar without labels", *[""] * 6])
        members = draw.choice(self.tars)
        images = [name for name, _ in members if name in self.samples]
        image = draw.choice(images)
        stem, _, suffix = image.rpartition(".")
        label = f"{stem}.{self.place.partition(':')[0]}"
        if what == "label" and self.has_members:
            members[:] = [(name, content) for name, content in members if name != label]
            self.samples[image] = self.samples[image][0], None
        elif what == "image" and self.has_members and len(images) > 1:
            members[:] = [(name, content) for name, content in members if name != image]
            del self.samples[image]
        elif what == "twice":
            members.append((draw.choice([image, f"{stem}.{suffix.swapcase()}"]), b"another"))
        elif what == "second image":
            members.append((f"{stem}.mask.{suffix}", b"a mask"))
        elif what == "heic":
            members.append((f"{stem}q.heic", b"heic"))
        elif what == "tar without labels" and self.has_members and len(self.tars) > 1:
            members[:] = [(name, content) for name, content in members if name in self.samples]
            for name in images:
                self.samples[name] = self.samples[name][0], None
        else:
            return
        self.must_serve = False


def test_random_tars_are_served_correctly_or_refused(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any order of the members: correct labels or an error; samples left out are reported."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/none")  # indexes in memory, which need no fsync
    outcomes = {"served": 0, "refused": 0, "warned": 0}
    for trial in range(NUM_RANDOM):
        truth = Truth(random.Random(trial))
        folder = tmp_path / str(trial)
        folder.mkdir()
        for number, members in enumerate(truth.tars):
            write_tar(folder / f"{number}.tar", members)
        recwarn.clear()
        try:
            found, why = serve(folder), ""
        except LoaderError as error:
            found, why = {}, str(error)
        messages = [str(warning.message) for warning in recwarn if "left out" in str(warning.message)]
        if truth.must_serve:
            assert not why, trial
        if why:
            outcomes["refused"] += 1
            continue
        assert {name: content for name, (content, _) in found.items()} == {
            name: content for name, (content, _) in truth.samples.items()
        }, trial
        labels = {name: str(label) for name, (_, label) in found.items()}
        if truth.place == "none":
            assert len(set(labels.values())) == 1, trial
        else:
            assert labels == {name: label for name, (_, label) in truth.samples.items()}, trial
        assert bool(messages) == (not truth.must_serve), (trial, messages)
        outcomes["warned" if messages else "served"] += 1
    assert all(count > NUM_RANDOM / 20 for count in outcomes.values()), outcomes
