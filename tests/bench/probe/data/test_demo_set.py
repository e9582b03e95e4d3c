"""The demo set: bytes that depend only on their key, a folder that survives interruption, visible labels."""

from __future__ import annotations

import errno
import io
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from processes import eventually

from penstock.bench.probe.data.demo_photo import class_name, photo_bytes
from penstock.bench.probe.data.demo_set import CHUNK, MANIFEST, SPLITS, synthesise
from penstock.pipelines.errors import LoaderError

SMALL = {"images": 14, "validation": 6, "classes": 3}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("synth") / "demo"
    synthesise(folder, **SMALL, workers=0)
    return folder


def test_layout_and_report(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    num_bytes = synthesise(tmp_path / "new" / "demo", **SMALL, workers=0, progress=lambda *at: seen.append(at))
    files = sorted((tmp_path / "new" / "demo").rglob("*.jpg"))
    counts = {
        split: [len(list(c.iterdir())) for c in sorted((tmp_path / "new" / "demo" / split).iterdir())]
        for split in SPLITS
    }
    assert counts == {"train": [5, 5, 4], "val": [2, 2, 2]}
    assert num_bytes == sum(f.stat().st_size for f in files)
    assert seen == [(CHUNK, 20), (20, 20)]


def test_class_folders_sort_in_the_order_of_labels() -> None:
    names = [class_name(label) for label in range(200)]
    assert sorted(map(str.encode, names)) == [n.encode() for n in names]
    assert len({n.partition("_")[2] for n in names}) == 200


def test_bytes_depend_only_on_the_key(demo: Path, tmp_path: Path) -> None:
    synthesise(tmp_path / "many", images=44, validation=0, classes=4, workers=2)
    many = contents(tmp_path / "many")
    shared = [name for name in contents(demo) if name in many and name != MANIFEST]
    assert len(shared) == 14
    assert all(many[name] == (demo / name).read_bytes() for name in shared)


def test_each_part_of_the_key_changes_the_photo() -> None:
    keys = [(0, 0, 0, 1), (1, 0, 0, 1), (0, 1, 0, 1), (0, 0, 1, 1), (0, 0, 0, 2)]
    assert len({photo_bytes(*key) for key in keys}) == len(keys)
    assert photo_bytes(*keys[0]) == photo_bytes(*keys[0])


def test_complete_folder_is_kept_and_incomplete_one_refused(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    synthesise(folder, **SMALL, workers=0)
    before, stamps = contents(folder), {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    synthesise(folder, **SMALL)
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == stamps
    victim = sorted(folder.rglob("*.jpg"))[7]
    for spoil in (lambda: victim.write_bytes(b""), victim.unlink):
        spoil()
        with pytest.raises(
            LoaderError, match=r"E-MISUSE.*photos of the demo set in the folder are missing.*remove '.*demo' first"
        ):
            synthesise(folder, **SMALL, workers=0)
    del before[str(victim.relative_to(folder))]
    assert contents(folder) == before


def test_leftovers_of_killed_runs_are_removed(tmp_path: Path) -> None:
    """A running build is recognised by the time of its folder: it may run on another machine, with any process id."""
    names = ("demo.tmp.4242", "demo.tmp.0123456789abcdef", "demo.tmp.4343", "d.tmp.4242")
    left, by_name, living, other = (tmp_path / name for name in names)
    for folder in (left, by_name, living, other):
        (folder / "train").mkdir(parents=True)
        if folder != living:
            os.utime(folder, (1e9, 1e9))
    (tmp_path / "demo").mkdir()  # an empty folder is accepted
    synthesise(tmp_path / "demo", images=1, validation=0, classes=1, workers=0)
    assert {path.name for path in tmp_path.iterdir()} == {"demo", living.name, other.name}
    assert sorted(contents(tmp_path / "demo")) == [MANIFEST, f"train/{class_name(0)}/0000.jpg"]


def test_a_running_build_updates_its_folder(tmp_path: Path) -> None:
    seen: list[float] = []

    def age(done: int, total: int) -> None:
        (unfinished,) = tmp_path.iterdir()
        seen.append(unfinished.stat().st_mtime)
        os.utime(unfinished, (1e9, 1e9))

    synthesise(tmp_path / "demo", images=2 * CHUNK + 1, validation=0, classes=1, workers=0, progress=age)
    assert len(seen) == 3
    assert min(seen) > 1e9


@pytest.mark.parametrize("change", [{"images": 15}, {"validation": 9}, {"classes": 2}, {"seed": 1}])
def test_other_settings_are_refused(demo: Path, change: dict[str, int]) -> None:
    before = contents(demo)
    with pytest.raises(LoaderError, match=r"E-MISUSE.*choose another folder"):
        synthesise(demo, **{**SMALL, **change}, workers=0)
    assert contents(demo) == before


@pytest.mark.parametrize(("name", "text"), [(MANIFEST, '{"format": 0}'), (MANIFEST, "{"), ("thesis.tex", "precious")])
def test_a_folder_with_other_contents_is_refused_and_unchanged(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(LoaderError, match="E-MISUSE"):
        synthesise(tmp_path, **SMALL, workers=0)
    assert contents(tmp_path) == {name: text.encode()}


@pytest.mark.parametrize("settings", [{"classes": 0}, {"images": 9}, {"validation": 9}, {"validation": -1}])
def test_settings_that_cannot_work_raise(tmp_path: Path, settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must be|too few"):
        synthesise(tmp_path / "demo", **settings)
    assert not (tmp_path / "demo").exists()


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_bytes

    def write_bytes(path: Path, data: bytes) -> int:
        if path.name == "0002.jpg":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    with pytest.raises(LoaderError, match=r"E-NOSPC.*free disk space"):
        synthesise(tmp_path / "demo", **SMALL, workers=0)
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_dies_is_named_and_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    settings = {"images": 64, "validation": 0, "classes": 1, "workers": 2}
    before = set(multiprocessing.active_children())

    def end(how: Callable[[], None]) -> Callable[[int, int], None]:
        return lambda done, total: how() if done < total else None

    def kill_a_worker() -> None:
        (set(multiprocessing.active_children()) - before).pop().kill()

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(LoaderError, match=r"E-WORKER.*sample=\d+.*killed by SIGKILL"):
        synthesise(tmp_path / "demo", **settings, progress=end(kill_a_worker))
    with pytest.raises(KeyboardInterrupt):
        synthesise(tmp_path / "demo", **settings, progress=end(interrupt))
    assert list(tmp_path.iterdir()) == []
    assert eventually(lambda: set(multiprocessing.active_children()) <= before)


def features_of_a_quarter(data: bytes, rng: np.random.Generator) -> list[float]:
    """Hue and slant of a random quarter of a photo, visible to any convolution."""
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), float)
    height, width = (side // 2 for side in pixels.shape[:2])
    top, left = rng.integers(0, (height, width))
    crop = pixels[top : top + height, left : left + width]
    red, green, blue = crop.mean((0, 1))
    down, across = (np.abs(np.diff(crop.mean(2), axis=axis)).mean() for axis in (0, 1))
    return [(red - blue) / 20, (red - green) / 20, 4 * np.log(down / across)]


def test_photos_are_large_and_show_their_labels() -> None:
    """The nearest of ten mean colours and slants is the label three times in ten; by chance, once."""
    rng, splits = np.random.default_rng(0), ((0, 16), (1, 6))
    photos = [[[photo_bytes(0, split, k, n) for k in range(10)] for n in range(count)] for split, count in splits]
    assert np.mean([len(data) for row in photos[0] for data in row]) == pytest.approx(110_000, rel=0.15)
    train, other = (np.array([[features_of_a_quarter(data, rng) for data in row] for row in part]) for part in photos)
    nearest = ((other[:, :, None] - train.mean(0)) ** 2).sum(-1).argmin(2)
    assert (nearest == np.arange(10)).mean() > 0.25
