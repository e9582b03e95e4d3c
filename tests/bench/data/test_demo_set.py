"""The demo set: bytes that depend on nothing but their key, a folder that survives interruption, labels to be seen."""

from __future__ import annotations

import errno
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from penstock.bench.data import demo_set
from penstock.bench.data.demo_photo import class_name, photo_bytes
from penstock.bench.data.demo_set import CHUNK, MANIFEST, SPLITS, SynthReport, synthesise
from penstock.pipelines.errors import LoaderError

SMALL = {"images": 14, "validation": 6, "classes": 3}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def rgb(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("synth") / "demo"
    synthesise(folder, **SMALL, workers=0)
    return folder


def test_layout_and_report(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = synthesise(tmp_path / "new" / "demo", **SMALL, workers=0, progress=lambda *at: seen.append(at))
    files = sorted((tmp_path / "new" / "demo").rglob("*.jpg"))
    counts = {split: [len(list(c.iterdir())) for c in sorted((report.folder / split).iterdir())] for split in SPLITS}
    assert counts == {"train": [5, 5, 4], "val": [2, 2, 2]}
    assert report == SynthReport(
        folder=tmp_path / "new" / "demo",
        images=14,
        validation=6,
        classes=3,
        num_written=20,
        total_bytes=sum(f.stat().st_size for f in files),
    )
    assert report.mean_bytes == report.total_bytes / 20
    assert seen == [(CHUNK, 20), (20, 20)]


def test_class_folders_sort_in_the_order_of_labels() -> None:
    names = [class_name(label) for label in range(200)]
    assert sorted(map(str.encode, names)) == [n.encode() for n in names]
    assert len({n.partition("_")[2] for n in names}) == 200


def test_bytes_do_not_depend_on_processes_or_the_size_of_the_set(demo: Path, tmp_path: Path) -> None:
    synthesise(tmp_path / "many", images=44, validation=0, classes=4, workers=2)
    many = contents(tmp_path / "many")
    shared = [name for name in contents(demo) if name in many and name != MANIFEST]
    assert len(shared) == 14
    assert all(many[name] == (demo / name).read_bytes() for name in shared)


def test_each_part_of_the_key_changes_the_photo() -> None:
    keys = [(0, 0, 0, 1), (1, 0, 0, 1), (0, 1, 0, 1), (0, 0, 1, 1), (0, 0, 0, 2)]
    assert len({photo_bytes(*key) for key in keys}) == len(keys)
    assert photo_bytes(*keys[0]) == photo_bytes(*keys[0])


def test_a_complete_folder_is_left_alone_and_an_incomplete_one_refused(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    synthesise(folder, **SMALL, workers=0)
    before, stamps = contents(folder), {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    assert synthesise(folder, **SMALL).num_written == 0
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


def test_what_a_killed_run_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    """A living one is known by the time of its folder: it may run on another machine, under any number."""
    names = ("demo.tmp.4242", "demo.tmp.0123456789abcdef", "demo.tmp.4343", "d.tmp.4242")
    left, by_name, living, other = (tmp_path / name for name in names)
    for folder in (left, by_name, living, other):
        (folder / "train").mkdir(parents=True)
        if folder != living:
            os.utime(folder, (1e9, 1e9))
    (tmp_path / "demo").mkdir()  # an empty folder is no obstacle
    assert synthesise(tmp_path / "demo", images=1, validation=0, classes=1, workers=0).num_written == 1
    assert {path.name for path in tmp_path.iterdir()} == {"demo", living.name, other.name}
    assert sorted(contents(tmp_path / "demo")) == [MANIFEST, f"train/{class_name(0)}/0000.jpg"]


def test_a_run_that_lives_shows_it(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("name", "text"), [(MANIFEST, '{"format": 0}'), (MANIFEST, "{"), (MANIFEST, "[]"), ("thesis.tex", "precious")]
)
def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    for target in (tmp_path, *([tmp_path / name] if name != MANIFEST else [])):
        with pytest.raises(LoaderError, match="E-MISUSE"):
            synthesise(target, **SMALL, workers=0)
    assert contents(tmp_path) == {name: text.encode()}


@pytest.mark.parametrize(
    "settings",
    [{"classes": 0}, {"images": 9}, {"validation": 9}, {"validation": -1}, {"seed": -1}, {"workers": -1}],
)
def test_settings_that_cannot_work_raise(tmp_path: Path, settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must be|too few"):
        synthesise(tmp_path / "demo", **settings)
    assert not (tmp_path / "demo").exists()


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_bytes

    def write_bytes(path: Path, data: bytes) -> int:
        if path.name == "0002.jpg":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    with pytest.raises(LoaderError, match="free disk space") as caught:
        synthesise(tmp_path / "demo", **SMALL, workers=0)
    assert caught.value.code == "E-NOSPC"
    assert list(tmp_path.iterdir()) == []
    photos = [demo_set._Photo(0, 0, 2)]  # a worker process reports it, too
    photos[0].path(tmp_path).parent.mkdir(parents=True)
    with pytest.raises(LoaderError, match="E-NOSPC"):
        demo_set._write_chunk(tmp_path, 0, photos, range(1), lambda place: None)


def test_a_killed_run_leaves_no_process_and_no_obstacle(tmp_path: Path) -> None:
    settings = {"images": 160, "validation": 0, "classes": 4}
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, pathlib\n"
        "from penstock.bench.data.demo_set import synthesise\n"
        "if __name__ == '__main__':\n"
        "    report = lambda *at: print(at, flush=True)\n"
        f"    synthesise(pathlib.Path(sys.argv[1]), **{settings}, workers=2, progress=report)\n"
    )
    with subprocess.Popen([sys.executable, script, tmp_path / "demo"], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        run.stdout.readline()
        workers = psutil.Process(run.pid).children(recursive=True)
        run.send_signal(signal.SIGKILL)
    assert len(workers) >= 2
    assert psutil.wait_procs(workers, timeout=240)[1] == []
    assert not (tmp_path / "demo").exists()
    (left,) = tmp_path.glob("demo.tmp.*")
    assert time.time() - left.stat().st_mtime < 600
    os.utime(left, (1e9, 1e9))
    assert synthesise(tmp_path / "demo", **settings, workers=0).num_written == 160
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo", "run.py"]


def test_a_worker_that_dies_is_named_and_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    settings = {"images": 64, "validation": 0, "classes": 1, "workers": 2}

    def end(how: Callable[[], None]) -> Callable[[int, int], None]:
        return lambda done, total: how() if done < total else None

    def kill_a_worker() -> None:
        multiprocessing.active_children()[0].kill()

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(LoaderError, match=r"E-WORKER.*sample=\d+.*killed by SIGKILL"):
        synthesise(tmp_path / "demo", **settings, progress=end(kill_a_worker))
    with pytest.raises(KeyboardInterrupt):
        synthesise(tmp_path / "demo", **settings, progress=end(interrupt))
    assert list(tmp_path.iterdir()) == []
    assert multiprocessing.active_children() == []


def test_photos_have_the_statistics_of_photos() -> None:
    photos = [photo_bytes(0, 0, number % 10, number // 10) for number in range(160)]
    assert np.mean([len(data) for data in photos]) == pytest.approx(110_000, rel=0.15)
    images = [Image.open(io.BytesIO(data)) for data in photos]
    assert sum(max(image.size) == 500 for image in images) > 80
    assert sum(image.size[1] > image.size[0] for image in images) > 16

    slopes, correlations = [], []
    for image in [i for i in images if i.mode == "RGB" and min(i.size) >= 256][:40]:
        pixels = np.asarray(image)[:256, :256].astype(float)
        window = np.hanning(256)
        spectrum = np.abs(np.fft.fft2((pixels.mean(2) - pixels.mean()) * window[:, None] * window))
        radius = np.hypot(np.fft.fftfreq(256)[:, None], np.fft.fftfreq(256)) * 256
        rings = np.arange(2, 128)
        mean = [spectrum[(radius >= r - 0.5) & (radius < r + 0.5)].mean() for r in rings]
        slopes.append(np.polyfit(np.log(rings), np.log(mean), 1)[0])
        correlations.append(np.corrcoef(pixels.reshape(-1, 3).T)[np.triu_indices(3, 1)])
    assert -1.6 < np.mean(slopes) < -0.9
    assert 0.8 < np.mean(correlations) < 0.99


def crop_features(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """What any convolution could see in a crop of a quarter of the area, mirrored or not: hue, and oriented energy."""
    height, width = (side // 2 for side in pixels.shape[:2])
    top, left = rng.integers(0, (height, width))
    side = min(height, width)
    crop = pixels[top : top + side, left : left + side].astype(float)
    crop = crop[:, ::-1] if rng.random() < 0.5 else crop
    red, green, blue = crop.mean((0, 1))
    taper = np.hanning(side)
    spectrum = np.abs(np.fft.fft2((crop.mean(2) - crop.mean()) * taper[:, None] * taper))
    frequency = np.fft.fftfreq(side) * side
    radius, angle = np.hypot(frequency[:, None], frequency), np.abs(np.arctan2(frequency[:, None], frequency))
    lean = np.minimum(angle, np.pi - angle)
    band = (radius >= 3) & (radius <= 6.5)
    sectors = [band & (lean >= a) & (lean < b) for a, b in ((0, 0.39), (0.39, 1.18), (1.18, 1.6))]
    total = np.log(spectrum[band].mean() / spectrum[(radius > 1) & (radius < 12)].mean())
    energy = [np.log(spectrum[s].mean() / spectrum[band].mean()) for s in sectors]
    peak = [np.log(np.partition(spectrum[s], -3)[-3:].mean() / spectrum[band].mean()) for s in sectors]
    return np.array([(red - blue) / 20, (red - green) / 20, total, *energy, *peak])


def test_labels_can_be_told_from_a_quarter_of_the_photo() -> None:
    rng = np.random.default_rng(0)
    features: dict[int, np.ndarray] = {}
    for split, count in enumerate((16, 6)):
        rows = [
            crop_features(rgb(photo_bytes(0, split, label, number)), rng)
            for number in range(count)
            for label in range(10)
        ]
        features[split] = np.array(rows)
    labels = {split: np.arange(len(rows)) % 10 for split, rows in features.items()}
    centre, scale = features[0].mean(0), features[0].std(0)
    quadratic = {
        split: np.hstack([z, *(z[:, i:] * z[:, i : i + 1] for i in range(z.shape[1])), np.ones((len(z), 1))])
        for split, z in ((split, (rows - centre) / scale) for split, rows in features.items())
    }
    ridge = quadratic[0].T @ quadratic[0] + 5 * np.eye(quadratic[0].shape[1])
    weights = np.linalg.solve(ridge, quadratic[0].T @ np.eye(10)[labels[0]])
    accuracy = ((quadratic[1] @ weights).argmax(1) == labels[1]).mean()
    assert accuracy > 0.7
