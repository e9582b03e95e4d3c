"""The images of a tree, their order, and the warnings about other files."""

from __future__ import annotations

import errno
import io
import os
import random
import re
import shutil
import socket
import string
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from folder_trees import plant, settle

from penstock.loaders.data.files import folder_scan, image_folder
from penstock.loaders.data.files.folder_scan import FolderScan
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.system import retries
from penstock.loaders.system.retries import RETRY_DELAYS_S
from penstock.pipelines.errors import LoaderError

ROOT = "the root itself"
SUFFIXES = ("a.jpg", "b.JPEG", "c.Jpe", "d.png", "e.WebP", "f.BMP", "g.gif", "h.txt.jpg")

left_out = pytest.mark.filterwarnings("ignore:.*left out:UserWarning")


def images_of(root: Path, **options: bool) -> list[tuple[bytes, bytes]]:
    """(class, path relative to the root) of each image, in order."""
    source = ImageFolder(root, rescan=True, allow_empty=True, **options)
    labels = source.labels(range(len(source)))
    start = len(os.fsencode(root)) + 1
    return [(source.classes[label], source.path(index)[start:]) for index, label in enumerate(labels)]


def plant_with_links(root: Path, files: list[Any], links: dict[str, str]) -> Path:
    plant(root, files)
    for name, target in links.items():
        (root / name).symlink_to(root if target == ROOT else target)
    return root


def test_images_are_sorted_by_class_then_by_the_bytes_of_the_path(tmp_path: Path) -> None:
    names = ["B/1.jpg", "a/10.jpg", "a/9.jpg", "a/X.jpg", "a/x.jpg", "a/x/1.jpg", "a/x0.jpg", "a-b/1.jpg", "b/1.jpg"]
    names += ["\u00e9/1.jpg"]
    plant(tmp_path, names[::-1])
    assert images_of(tmp_path) == [(name.split("/")[0].encode(), name.encode()) for name in names]


@left_out
@pytest.mark.parametrize("seed", range(3))
def test_the_order_does_not_depend_on_the_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    draw = random.Random(seed)
    names = {
        "/".join(draw.choice(string.ascii_letters) for _ in range(draw.randint(2, 4))) + ".jpg" for _ in range(200)
    }
    plant(tmp_path, sorted(names))
    (tmp_path / "zz-linked").symlink_to(plant(tmp_path.parent / f"elsewhere{seed}", ["1/a.jpg", "2/a.jpg"]))
    (tmp_path / "zz-linked" / "twice").symlink_to(tmp_path.parent / f"elsewhere{seed}" / "1")
    expected = sorted((os.fsencode(name.split("/")[0]), os.fsencode(name)) for name in names)
    expected += [(b"zz-linked", b"zz-linked/1/a.jpg"), (b"zz-linked", b"zz-linked/2/a.jpg")]
    assert images_of(tmp_path) == expected

    class Shuffled:
        def __init__(self, fd: int, listing=os.scandir) -> None:
            self.entries = list(listing(fd))
            draw.shuffle(self.entries)

        def __enter__(self) -> list[os.DirEntry[str]]:
            return self.entries

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(folder_scan.os, "scandir", Shuffled)
    for _ in range(3):
        assert images_of(tmp_path) == expected


def test_a_flat_folder_is_one_class(tmp_path: Path) -> None:
    plant(tmp_path, ["b.jpg", "a.PNG"])
    source = ImageFolder(tmp_path)
    assert images_of(tmp_path) == [(b".", b"a.PNG"), (b".", b"b.jpg")]
    assert source.describe().startswith("2 images, 1 class (a flat folder counts as one class), 0.0 MB")


def by_torchvision(root: Path) -> tuple[list[str], list[tuple[bytes, int]]]:
    """Return classes and (path, label) by torchvision's rules: find_classes and make_dataset in datasets/folder.py."""
    suffixes = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    samples = []
    for label, name in enumerate(classes):
        for folder, _, files in os.walk(root / name, followlinks=True):
            samples += [(os.fsencode(f"{folder}/{file}"), label) for file in files if file.lower().endswith(suffixes)]
    return classes, sorted(samples)


# files, links (from -> to), and the warning where torchvision's ImageFolder has other classes or samples
CAT_DOG = ["cat/1.jpg", "dog/2.jpg"]
STRAY = "left out: . images? next to class folders"  # also by torchvision's ImageFolder
LIKE_IMAGE_FOLDER: dict[str, tuple[list[Any], dict[str, str], str | None]] = {
    "odd names": (["v1.png/a.jpg", "v1.png/x.jpeg/b.jpg", "B/c.bmp", "a-b/d.webp", "\u00e9/e.jpg", "f.jpg"], {}, STRAY),
    "links": (
        [*CAT_DOG, "../out/3.jpg", "../out/deep/4.PNG"],
        {"m.jpg": "../out", "dog/5.jpg": "../../out/3.jpg"},
        None,
    ),
    "no UTF-8": ([b"\xff\xe9/1.jpg", b"\xe9/2.jpg", "\u65e5/3.jpg", "\U0001f600/4.jpg", "z/5.jpg"], {}, None),
    "next to the classes": ([*CAT_DOG, "3.ppm", ".4.jpg"], {"5.jpg": "nowhere"}, STRAY),
    "hidden": (
        [*CAT_DOG, ".thumbs/3.jpg"],
        {},
        r"left out: '\.thumbs'\..* number 2 of the others higher, from 'cat' on",
    ),
    "a system's": (
        ["Ant/1.jpg", *CAT_DOG, "__MACOSX/cat/._1.jpg"],
        {},
        "'__MACOSX'.* 2 of the others higher, from 'cat'",
    ),
    "a file system's": (["zoo/1.jpg", *CAT_DOG, "lost+found/#3.jpg"], {}, r"'lost\+found'.* 1 of .* from 'zoo' on"),
    "the last": ([*CAT_DOG, "lost+found/#3.jpg"], {}, r"'lost\+found'.* number the others alike"),
    "a class twice": (CAT_DOG, {"ant": "dog", "bee": "dog"}, "'ant', 'bee'.* 2 of the others higher"),
    "a folder twice": (CAT_DOG, {"cat/again": "../dog"}, "skipped: 1 folder seen before"),
    "PGM among JPEGs": (
        [*CAT_DOG, "cat/3.pgm", "dog/4.PPM"],
        {},
        r"left out: 2 images of a format that is not read \('cat/3.pgm'\)",
    ),
    "hidden images": ([*CAT_DOG, "cat/.3.jpg", "dog/@eaDir/4.jpg"], {}, "skipped: 2 hidden with images"),
    "a broken link": (CAT_DOG, {"cat/3.jpg": "nowhere"}, r"left out: 1 broken link \('cat/3.jpg'\)"),
}


@pytest.mark.parametrize("case", LIKE_IMAGE_FOLDER)
def test_classes_and_samples_equal_torchvisions_or_there_is_a_warning(tmp_path: Path, case: str) -> None:
    files, links, words = LIKE_IMAGE_FOLDER[case]
    root = plant_with_links(tmp_path / "root", files, links)
    settle(tmp_path)
    for _ in range(2):  # scanned, then from the kept index
        with pytest.warns(UserWarning, match=words) if words else nullcontext():
            ours = ImageFolder(root)
        labels = ours.labels(range(len(ours))).tolist()
        samples = sorted(zip(map(ours.path, range(len(ours))), labels, strict=True))
        equal = ([os.fsdecode(name) for name in ours.classes], samples) == by_torchvision(root)
        assert equal == (words in (None, STRAY))


def test_data_refused_by_torchvision_and_requested_options_do_not_warn(tmp_path: Path) -> None:
    root = plant(tmp_path / "root", [*CAT_DOG, ".git/config", "lost+found/"])
    (root / "ant").symlink_to("cat")
    assert ImageFolder(root, follow_symlinks=False).classes == (b"cat", b"dog")


def test_a_flat_folder_with_subfolders_is_accepted_with_a_warning(tmp_path: Path) -> None:
    plant(tmp_path, ["b.jpg", "notes/readme.txt"])
    for _ in range(2):  # scanned, then from the kept index
        with pytest.warns(UserWarning, match="its folders contain no images"):
            assert ImageFolder(tmp_path).classes == (b".",)


@left_out
@pytest.mark.parametrize("suffix", ["ppm", "PPM", "pgm"])
def test_a_stray_image_next_to_class_folders_of_other_formats_is_not_the_data(tmp_path: Path, suffix: str) -> None:
    plant(tmp_path, [f"cat/1.{suffix}", f"dog/2.{suffix}", "logo.png"])
    with pytest.raises(LoaderError, match=r"contain 2 images of formats not read .* 1 image next to them") as caught:
        ImageFolder(tmp_path)
    assert caught.value.code == "E-NODATA"
    plant(tmp_path, ["cat/3.png"])
    assert ImageFolder(tmp_path, allow_empty=True).skipped == {"format not read": 2, "next to class folders": 1}


def test_an_image_of_another_format_in_a_flat_folder_is_not_a_stray(tmp_path: Path) -> None:
    plant(tmp_path, ["1.png", "2.png", "scan.pgm", "labels/names.txt"])
    with pytest.warns(UserWarning, match="as one class"), pytest.warns(UserWarning, match="left out: 1 .*'scan.pgm'"):
        assert ImageFolder(tmp_path).skipped == {"format not read": 1, "other suffix": 1}


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a/x.HEIC", "b/y.heic"], "2 images of a format that is not read ('a/x.HEIC'); convert them to JPEG or PNG"),
        (["a/x.avif", "a/1/y.jxl", "b/z.JP2"], "3 images of a format that is not read ('a/1/y.jxl'); convert"),
        (["a/x.JPG_large", "a/y.jpg~"], "2 files with an unknown suffix ('a/x.JPG_large'); give images the suffix"),
        (["a/x0", "b/x1"], "2 files without a suffix ('a/x0'); give images the suffix of their format, or pass a list"),
        (["z.heic", "y.jpg"], "2 images next to class folders ('y.jpg'); move them"),
        (["a/x.tar", "b/y.zip"], "2 files with an unknown suffix ('a/x.tar')"),
        (["a/x.heic", "b/y.part", "b/z"], "1 image of a format that is not read ('a/x.heic'), 1 file with an unknown"),
        (["a/x.txt", "a/Thumbs.db", "b/.DS_Store", "meta.json", "b/labels.csv", "README", "a/x.xml", "b/LICENSE"], ""),
    ],
)
def test_one_warning_lists_all_files_that_are_left_out(tmp_path: Path, names: list[str], words: str) -> None:
    plant(tmp_path, ["a/1.jpg", "b/2.jpg", *names])
    settle(tmp_path)
    for _ in range(2):  # scanned, then from the saved index
        expected = pytest.warns(UserWarning, match=f"^{re.escape(f'{str(tmp_path)!r}: left out: {words}')}")
        with expected if words else nullcontext():
            assert len(ImageFolder(tmp_path)) == 2


def test_a_flat_folder_of_few_images_warns_about_files_left_out(tmp_path: Path) -> None:
    plant(tmp_path, ["1.jpg", *(f"{number}.heic" for number in range(7))])
    with pytest.warns(UserWarning, match=r"left out: 7 images of a format that is not read \('0.heic'\)"):
        assert len(ImageFolder(tmp_path)) == 1


def test_every_suffix_of_jpeg_is_read(tmp_path: Path) -> None:
    suffixes = ["jpg", "JPEG", "jpe", "jfif", "JIF", "pjpeg", "pjp", "jfi"]
    plant(tmp_path, [f"a/1.{suffix}" for suffix in suffixes])
    assert len(ImageFolder(tmp_path)) == 8


def test_folders_named_images_and_masks_warn_as_classes(tmp_path: Path) -> None:
    plant(tmp_path, ["images/1.jpg", "masks/1.png"])
    with pytest.warns(UserWarning, match="its classes are 'images' and 'masks': pass the folder of the images"):
        ImageFolder(tmp_path)


@left_out
@pytest.mark.timeout(20)
def test_files_that_are_not_regular_are_counted_and_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, ["c/1.jpg"])
    os.mkfifo(tmp_path / "c" / "fifo.jpg")
    (tmp_path / "c" / "device.jpg").symlink_to("/dev/zero")
    monkeypatch.chdir(tmp_path / "c")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.jpg")
    assert images_of(tmp_path) == [(b"c", b"c/1.jpg")]
    assert ImageFolder(tmp_path, rescan=True).skipped == {"not a regular file": 3}


# name -> files, links (from -> to), the images found, the files skipped
TREES: dict[str, tuple[list[str], dict[str, str], list[str], dict[str, int]]] = {
    "folders with names of images": (
        ["v1.png/a.jpg", "v2/b.jpg", "v2/deep.jpg/c.jpg", "v3.JPEG/d.jpg", "../elsewhere/e.jpg"],
        {"v4.bmp": "../elsewhere"},
        ["v1.png/a.jpg", "v2/b.jpg", "v2/deep.jpg/c.jpg", "v3.JPEG/d.jpg", "v4.bmp/e.jpg"],
        {},
    ),
    "images next to class folders": (
        ["cat/1.jpg", "stray.jpg", "stray.png", "readme.txt"],
        {},
        ["cat/1.jpg"],
        {"next to class folders": 2, "other suffix": 1},
    ),
    "suffixes in any case": (
        [f"c/{name}" for name in (*SUFFIXES, "jpg", "x.jpgx", "x.ppm", "x.jpg.txt", "noext")],
        {},
        [f"c/{name}" for name in SUFFIXES],
        {"format not read": 1, "other suffix": 1, "unknown suffix": 1, "no suffix": 2},
    ),
    "hidden names and system files": (
        [
            *("c/1.jpg", "c/._1.jpg", "c/.hidden.jpg", "c/@eaDir/thumb.jpg"),
            *(".git/1.jpg", "lost+found/", "__MACOSX/c/._1.jpg", ".DS_Store"),
        ],
        {},
        ["c/1.jpg"],
        {"hidden": 4, "hidden with images": 3},
    ),
    "loops": (
        ["c/1.jpg", "d/deep/2.jpg", "../beside the root/3.jpg"],
        {"c/self": ".", "c/up": "..", "c/above": "../..", "c/sibling": "../d/deep", "a-class-that-is-a-link": "d"}
        | {"d/absolute": ROOT, "d/circle": "circle"},
        ["c/1.jpg", "d/deep/2.jpg"],
        {"folder seen before": 5, "class folder seen before": 1, "broken link": 1},
    ),
    "a loop outside the root": (
        ["../outside/1.jpg", "../outside/deep/2.jpg", "b/1.jpg"],
        {"../outside/deep/back": "..", "a": "../outside", "z": "../outside"},
        ["a/1.jpg", "a/deep/2.jpg", "b/1.jpg"],
        {"folder seen before": 1, "class folder seen before": 1},
    ),
    "links to files and into hidden folders": (  # the volume layout of Kubernetes and some data versioning tools
        [".store/v1/1.jpg", "c/2.jpg"],
        {"d": ".store/v1", "c/3.jpg": "../.store/v1/1.jpg"},
        ["c/2.jpg", "c/3.jpg", "d/1.jpg"],
        {"hidden": 1},
    ),
    "broken links": (
        ["c/1.jpg"],
        {"c/gone.jpg": "nowhere.jpg", "c/circle.jpg": "circle.jpg"},
        ["c/1.jpg"],
        {"broken link": 2},
    ),
}


@left_out
@pytest.mark.parametrize("case", TREES)
def test_images_are_found_and_other_files_counted(tmp_path: Path, case: str) -> None:
    files, links, images, skipped = TREES[case]
    root = plant_with_links(tmp_path / "root", files, links)
    assert images_of(root) == [(os.fsencode(image.split("/")[0]), os.fsencode(image)) for image in images]
    source = ImageFolder(root, rescan=True)
    assert source.skipped == skipped
    assert all(f"{count} {reason}" in source.describe() for reason, count in skipped.items())


def test_links_are_not_followed_on_request(tmp_path: Path) -> None:
    links = {"c/2.jpg": "1.jpg", "d": "../outside"}
    root = plant_with_links(tmp_path / "root", ["c/1.jpg", "../outside/1.jpg"], links)
    assert [path for _, path in images_of(root)] == [b"c/1.jpg", b"c/2.jpg", b"d/1.jpg"]
    assert images_of(root, follow_symlinks=False) == [(b"c", b"c/1.jpg")]
    assert ImageFolder(root, rescan=True, follow_symlinks=False).skipped == {"link": 2}


ODD_NAMES = [
    b"\xff\xfe\xe9.jpg",
    b"new\nline.jpg",
    b"tab\t'quote\".jpg",
    b"-rf.jpg",
    b" .jpg",
    b"\x1b[31mred.jpg",
    "日本語.jpg".encode(),
    b"a" * 251 + b".jpg",
]


def test_unusual_names_stay_bytes_throughout(tmp_path: Path) -> None:
    plant(tmp_path, [b"\xe9t\xe9/" + name for name in ODD_NAMES])
    source = ImageFolder(os.fsencode(tmp_path))
    assert source.classes == (b"\xe9t\xe9",)
    for index, name in enumerate(sorted(ODD_NAMES)):
        assert source.path(index) == os.fsencode(tmp_path) + b"/\xe9t\xe9/" + name
        assert source.read(index) == b"\xe9t\xe9/" + name
    shutil.rmtree(os.path.join(os.fsencode(tmp_path), b"\xe9t\xe9"))
    for index in range(len(ODD_NAMES)):
        with pytest.raises(LoaderError) as caught:
            source.read(index)
        assert caught.value.code == "E-MISSING"
        assert str(caught.value).isascii()
        assert str(caught.value).isprintable()


def test_a_path_above_the_kernels_limit_is_named(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_DIRECTORY)
    for number in range(20):
        name = b"%02d" % number + b"d" * 248
        os.mkdir(name, dir_fd=folder)
        below = os.open(name, os.O_DIRECTORY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    with pytest.raises(LoaderError, match="File name too long") as caught:
        ImageFolder(tmp_path)
    assert caught.value.code == "E-READ"


def test_a_missing_folder_and_a_folder_without_images_are_refused(tmp_path: Path) -> None:
    plant(tmp_path / "texts", ["c/readme.txt", "c/.hidden.jpg"])
    plant(tmp_path, ["file.jpg"])
    (tmp_path / "empty").mkdir()
    causes = {"absent": "no such folder", "file.jpg": "no such folder", "empty": "no images in this folder"}
    causes["texts"] = (
        "no images in this folder, skipped: 1 hidden with images ('c/.hidden.jpg'), 1 other suffix ('c/readme.txt')"
    )
    for name, cause in causes.items():
        with pytest.raises(LoaderError) as caught:
            ImageFolder(tmp_path / name, allow_empty=True)
        assert (caught.value.code, caught.value.cause) == ("E-NODATA", cause)
        assert caught.value.path == os.fsencode(tmp_path / name)


def test_empty_classes_are_refused_unless_allowed(tmp_path: Path) -> None:
    plant(tmp_path, ["a/1.jpg", "b/", "c/readme.txt", "d/1.jpg"])
    for _ in range(2):  # scanned, then from the kept index
        with pytest.raises(LoaderError, match="nor in 1 others") as caught:
            ImageFolder(tmp_path)
        assert caught.value.code == "E-EMPTYCLASS"
        assert caught.value.path == os.fsencode(tmp_path / "b")
    source = ImageFolder(tmp_path, allow_empty=True)
    assert source.classes == (b"a", b"b", b"c", b"d")
    assert source.labels(range(2)).tolist() == [0, 3]


def deny(monkeypatch: pytest.MonkeyPatch, *folders: Path, number: int = errno.EACCES, times: int = 1000) -> None:
    """Make opening `folders` fail for the scan (file modes do not stop root, who may run these tests)."""
    open_file, left = os.open, [times]

    def refuse(path: bytes, flags: int, *rest: int) -> int:
        if os.fsdecode(path) in map(str, folders) and left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number))
        return open_file(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)


def test_folders_that_cannot_be_read_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, ["a/1.jpg", "a/deep/1.jpg", "b/1.jpg"])
    deny(monkeypatch, tmp_path / "a" / "deep")
    with pytest.warns(UserWarning, match=r"left out: 1 unreadable path \('a/deep'\)"):
        assert ImageFolder(tmp_path).skipped == {"unreadable": 1}
    deny(monkeypatch, tmp_path / "b")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(LoaderError) as caught, pytest.warns(UserWarning, match="2 unreadable paths"):
        ImageFolder(tmp_path, rescan=True)
    assert caught.value.code == "E-ACCESS"
    assert caught.value.path == os.fsencode(tmp_path / "b")
    deny(monkeypatch, tmp_path)
    with pytest.raises(LoaderError) as caught:
        ImageFolder(tmp_path, rescan=True)
    assert caught.value.code == "E-ACCESS"


def test_a_scan_retries_transient_storage_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, ["a/1.jpg"])
    slept: list[float] = []
    monkeypatch.setattr(retries.time, "sleep", slept.append)
    deny(monkeypatch, tmp_path / "a", number=errno.ESTALE, times=3)
    assert images_of(tmp_path) == [(b"a", b"a/1.jpg")]
    assert slept == list(RETRY_DELAYS_S)
    deny(monkeypatch, tmp_path / "a", number=errno.EIO)
    with pytest.raises(LoaderError) as caught:
        ImageFolder(tmp_path, rescan=True)
    assert caught.value.code == "E-READ"
    assert caught.value.path == os.fsencode(tmp_path / "a")


@pytest.mark.parametrize("is_long", [True, False])
def test_a_long_scan_is_shown_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_long: bool) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    if is_long:
        monkeypatch.setattr(image_folder, "SHOW_AFTER_S", 0.0)
    reported: list[int] = []
    show = image_folder.ProgressBar.show
    monkeypatch.setattr(
        image_folder.ProgressBar, "show", lambda bar, n, **what: (reported.append(n), show(bar, n, **what))
    )
    ImageFolder(plant(tmp_path / "[bold]", {f"c/{number}.jpg": b"" for number in range(2500)}))
    assert reported == [1024, 2048, 2500]
    assert ("scanning: 2,500 images in" in terminal.getvalue()) is is_long


def test_a_scan_leaves_no_open_descriptors(tmp_path: Path) -> None:
    plant(tmp_path, ["a/1.jpg", "b/deep/1.jpg"])
    before = len(os.listdir("/proc/self/fd"))
    FolderScan(os.fsencode(tmp_path))
    with pytest.raises(LoaderError):
        FolderScan(os.fsencode(plant(tmp_path / "none", ["c/d/"])))
    assert len(os.listdir("/proc/self/fd")) == before
