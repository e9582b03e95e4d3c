"""The saved index: used only while the tree is unchanged, the index intact and owned by the user."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from folder_trees import plant, settle
from worker_roles import num_open_files, scan_again_and_again

from penstock.loaders.data.files import image_folder
from penstock.loaders.data.files.image_folder import ImageFolder, name_index
from penstock.loaders.system import saved_columns
from penstock.loaders.system.saved_columns import cache_folder
from penstock.pipelines.errors import LoaderError

NAMES = ["a/1.jpg", "a/2.jpg", "a/deep/3.jpg", "b/4.jpg"]
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The roots that were scanned, in order."""
    roots: list[bytes] = []
    scan = image_folder.FolderScan
    monkeypatch.setattr(image_folder, "FolderScan", lambda root, **options: roots.append(root) or scan(root, **options))
    return roots


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return settle(plant(tmp_path / "tree", [*NAMES, "a/empty/"]))


def index_file(own_cache: Path) -> Path:
    (path,) = own_cache.iterdir()
    return path


def paths_of(source: ImageFolder) -> list[str]:
    return [os.fsdecode(source.path(index)[len(source.root) + 1 :]) for index in range(len(source))]


def test_a_second_open_does_not_scan(tree: Path, scans: list[bytes]) -> None:
    first = ImageFolder(tree)
    second = ImageFolder(str(tree) + "/")
    assert len(scans) == 1
    assert paths_of(first) == paths_of(second) == NAMES
    assert first.fingerprint == second.fingerprint
    assert first.describe() == second.describe()
    ImageFolder(tree, rescan=True)
    assert len(scans) == 2


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def overwrite(path: Path) -> None:
    path.write_bytes(b"?" * path.stat().st_size)


def keep_time(change: Callable[[Path], object], folder: str) -> Callable[[Path], None]:
    """Make `change`, then restore the folder's mtime, as tar, cp -a and rsync do."""

    def changed(tree: Path) -> None:
        before = (tree / folder).stat().st_mtime_ns
        time.sleep(0.05)  # a file system's clock may not advance for some milliseconds
        change(tree)
        os.utime(tree / folder, ns=(before, before))

    return changed


def replace_folder_by_an_equal_one(path: Path) -> None:
    root_time = path.parent.stat().st_mtime_ns
    path.rename(path.with_name("old"))
    shutil.copytree(path.with_name("old"), path)
    remove(path.with_name("old"))
    os.utime(path.parent, ns=(root_time, root_time))


MUTATIONS: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "add a file": (lambda t: plant(t, ["b/0.jpg"]), ["a/1.jpg", "a/2.jpg", "a/deep/3.jpg", "b/0.jpg", "b/4.jpg"]),
    "add a file, keep the folder's time": (
        keep_time(lambda t: plant(t, ["b/0.jpg"]), "b"),
        [*NAMES[:3], "b/0.jpg", "b/4.jpg"],
    ),
    "add a file deep down": (lambda t: plant(t, ["a/deep/0.jpg"]), ["a/1.jpg", "a/2.jpg", "a/deep/0.jpg", *NAMES[2:]]),
    "add a file to an empty folder": (lambda t: plant(t, ["a/empty/5.jpg"]), [*NAMES[:3], "a/empty/5.jpg", "b/4.jpg"]),
    "remove a file": (lambda t: remove(t / "a/1.jpg"), NAMES[1:]),
    "rename a file": (lambda t: (t / "a/2.jpg").rename(t / "a/0.jpg"), ["a/0.jpg", "a/1.jpg", *NAMES[2:]]),
    "touch a file": (lambda t: os.utime(t / "a/deep/3.jpg"), NAMES),
    "overwrite a file": (lambda t: overwrite(t / "b/4.jpg"), NAMES),
    "lengthen a file": (lambda t: (t / "b/4.jpg").write_bytes(b"longer than it was"), NAMES),
    "add a class": (lambda t: plant(t, ["0/0.jpg"]), ["0/0.jpg", *NAMES]),
    "remove a class": (lambda t: remove(t / "a"), NAMES[3:]),
    "rename a class": (lambda t: (t / "b").rename(t / "0"), ["0/4.jpg", *NAMES[:3]]),
    "remove a folder deep down": (lambda t: remove(t / "a/deep"), [*NAMES[:2], NAMES[3]]),
    "move a file to another class": (
        lambda t: (t / "a/1.jpg").rename(t / "b/1.jpg"),
        [*NAMES[1:3], "b/1.jpg", "b/4.jpg"],
    ),
    "replace a folder": (lambda t: replace_folder_by_an_equal_one(t / "b"), NAMES),
    "replace the root": (lambda t: (remove(t), plant(t, ["c/9.jpg"])), ["c/9.jpg"]),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_changed_tree_is_scanned_again(tree: Path, scans: list[bytes], mutation: str) -> None:
    change, names = MUTATIONS[mutation]
    ImageFolder(tree)
    change(tree)
    source = ImageFolder(tree)
    assert len(scans) == 2
    assert paths_of(source) == names
    assert all(source.read(index) is not None for index in range(len(source)))


def test_a_change_in_a_folder_that_is_not_walked_causes_no_scan(tree: Path, scans: list[bytes]) -> None:
    plant(tree, [".hidden/x.txt"])
    settle(tree)
    ImageFolder(tree)
    plant(tree, [".hidden/y.txt"])
    ImageFolder(tree)
    assert len(scans) == 1


def test_a_folder_that_changed_just_now_is_scanned_again(tmp_path: Path, scans: list[bytes]) -> None:
    tree = plant(tmp_path / "tree", NAMES)  # another change could have the same time stamp
    ImageFolder(tree)
    ImageFolder(tree)
    assert len(scans) == 2


@pytest.mark.filterwarnings("ignore:.*1 broken link:UserWarning")
@pytest.mark.parametrize(("name", "fetched"), [("5.jpg", "fetched"), ("more", "fetched/6.jpg")])
def test_a_broken_link_that_is_repaired_is_noticed(tree: Path, tmp_path: Path, name: str, fetched: str) -> None:
    link = tree / "b" / name
    link.symlink_to(tmp_path / "fetched")
    settle(tree)
    assert len(ImageFolder(tree)) == 4
    plant(tmp_path, [fetched])  # the folder of the link itself does not change
    assert len(ImageFolder(tree)) == 5


def test_options_that_change_the_scan_have_separate_indexes(tree: Path, tmp_path: Path, scans: list[bytes]) -> None:
    (tree / "b" / "5.jpg").symlink_to(plant(tmp_path / "x", ["5.jpg"]) / "5.jpg")
    settle(tree)
    assert [len(ImageFolder(tree, follow_symlinks=follow)) for follow in (True, False, True, False)] == [5, 4, 5, 4]
    assert len(scans) == 2


def test_a_copy_has_a_separate_index_and_a_link_shares_it(tree: Path, tmp_path: Path, scans: list[bytes]) -> None:
    shutil.copytree(tree, tmp_path / "copy", copy_function=shutil.copyfile)
    assert ImageFolder(tree).fingerprint == ImageFolder(tmp_path / "copy").fingerprint
    assert len(scans) == 2
    plant(tmp_path / "copy", ["a/0.jpg"])
    assert ImageFolder(tree).fingerprint != ImageFolder(tmp_path / "copy").fingerprint
    (tmp_path / "link").symlink_to(tree)
    source = ImageFolder(tmp_path / "link")
    assert source.path(0) == os.fsencode(tmp_path / "link" / "a" / "1.jpg")
    assert len(scans) == 3


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A large tree: about every second file is in the sample of checked files."""
    return settle(plant(tmp_path / "large", {f"c/{number:04d}.jpg": b"12345" for number in range(600)}))


def test_files_outside_the_sample_are_checked_when_they_are_read(large: Path, scans: list[bytes]) -> None:
    ImageFolder(large)
    overwrite(large / "c" / "0001.jpg")
    source = ImageFolder(large)
    assert len(scans) == 1
    assert source.read(0) == b"12345"
    with pytest.raises(LoaderError, match=r"start again.*indexed again") as caught:
        source.read(1)
    assert (caught.value.code, caught.value.sample) == ("E-CHANGED", 1)
    again = ImageFolder(large)  # as the error proposes
    assert len(scans) == 2
    assert again.read(1) == b"?????"
    assert len(ImageFolder(large)) == 600
    assert len(scans) == 2
    with pytest.raises(LoaderError, match="E-CHANGED"):
        source.read(1)
    ImageFolder(large)
    assert len(scans) == 2  # the index of another scan is kept
    overwrite(large / "c" / "0599.jpg")
    ImageFolder(large)
    assert len(scans) == 3


def test_judging_a_cache_compares_every_file(large: Path, scans: list[bytes]) -> None:
    source = ImageFolder(large, allow_empty=True)
    assert source.refreshed() is source
    overwrite(large / "c" / "0001.jpg")
    now = source.refreshed()
    assert len(scans) == 2
    assert (now.fingerprint == source.fingerprint, now.content == source.content) == (True, False)
    (large / "d").mkdir()
    assert now.refreshed().classes == (b"c", b"d")  # an empty class folder is still allowed


def put_a_fifo_there(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut by one byte": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "a pickle": lambda path: path.write_bytes(b"\x80\x04cposix\nsystem\n(\x8c\x05falsetR."),
    "a FIFO": put_a_fifo_there,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_is_scanned_again_and_replaced(
    tree: Path, own_cache: Path, scans: list[bytes], damage: str
) -> None:
    ImageFolder(tree)
    DAMAGES[damage](index_file(own_cache))
    assert paths_of(ImageFolder(tree)) == NAMES
    assert len(scans) == 2
    ImageFolder(tree)
    assert len(scans) == 2


@pytest.mark.parametrize("owned", ["folder", "index"])
def test_an_index_of_another_user_is_not_used(
    tree: Path, own_cache: Path, scans: list[bytes], monkeypatch: pytest.MonkeyPatch, owned: str
) -> None:
    """An index decides which files are read with which labels, and its folder may be shared by mistake."""
    ImageFolder(tree)
    before = index_file(own_cache).stat()
    if owned == "index":
        monkeypatch.setattr(saved_columns, "cache_folder", lambda: os.fsencode(own_cache))
        ImageFolder(tree)
        assert len(scans) == 1
    monkeypatch.setattr(saved_columns.os, "geteuid", lambda: before.st_uid + 1)
    assert paths_of(ImageFolder(tree)) == NAMES
    assert len(scans) == 2
    if owned == "folder":
        assert cache_folder() is None
        assert index_file(own_cache).stat().st_mtime_ns == before.st_mtime_ns


def test_an_index_of_another_tree_is_not_used(
    tree: Path, tmp_path: Path, own_cache: Path, scans: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_folder, "is_unchanged", lambda index, every: True)
    ImageFolder(tree)
    other = settle(plant(tmp_path / "other", NAMES))
    index_file(own_cache).rename(own_cache / os.fsdecode(name_index(os.fsencode(other), follow_symlinks=True)))
    ImageFolder(other)
    assert len(scans) == 2


def test_the_folder_and_its_files_are_private_to_the_user(tree: Path, own_cache: Path) -> None:
    mask = os.umask(0)
    try:
        ImageFolder(tree)
        assert (own_cache.stat().st_mode & 0o777, index_file(own_cache).stat().st_mode & 0o777) == (0o700, 0o600)
        own_cache.chmod(0o777)
        ImageFolder(tree, rescan=True)
        assert own_cache.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(mask)


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == os.fsencode(tmp_path / "cache" / "penstock")
    for unset in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert cache_folder() == os.fsencode(tmp_path / "home" / ".cache" / "penstock")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == os.fsencode(tmp_path / "home" / ".cache" / "penstock")
    monkeypatch.setattr(
        os.path, "expanduser", lambda path: path
    )  # as without HOME for a user that the system does not know
    assert cache_folder() is None


def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # even root cannot create a folder inside a file


def test_without_a_cache_folder_nothing_is_left_behind(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scans: list[bytes]
) -> None:
    no_cache(monkeypatch, tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    before = num_open_files()
    for _ in range(3):
        source = ImageFolder(tree)
        assert paths_of(source) == NAMES
    del source
    assert len(scans) == 3
    assert num_open_files() == before
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_full_disk_falls_back_to_memory(tree: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saved_columns.os, "fsync", full)
    assert paths_of(ImageFolder(tree)) == NAMES
    assert list(own_cache.iterdir()) == []


def test_an_index_that_can_be_stored_nowhere_is_an_error(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(name: str, flags: int) -> int:
        raise OSError(12, "Cannot allocate memory")

    no_cache(monkeypatch, tmp_path)
    monkeypatch.setattr(saved_columns.os, "memfd_create", none)
    with pytest.raises(LoaderError, match="the index of the data cannot be stored") as caught:
        ImageFolder(tree)
    assert caught.value.code == "E-NOSPC"


def test_concurrent_builders_all_see_complete_indexes(tree: Path, own_cache: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    processes = [context.Process(target=scan_again_and_again, args=(os.fsencode(tree), 10, sender)) for _ in range(3)]
    for process in processes:
        process.start()
    prints = {ImageFolder(tree).fingerprint for _ in range(30)}
    for process in processes:
        process.join()
        assert process.exitcode == 0
        prints |= receiver.recv()
    assert len(prints) == 1
    assert [path.suffix for path in own_cache.iterdir()] == [".index"]


def test_files_of_killed_builders_are_removed_after_an_hour(tree: Path, own_cache: Path) -> None:
    ImageFolder(tree)
    name = index_file(own_cache).name
    old = [
        own_cache / f"{name}.x_1abcde.tmp",
        own_cache / f"{name}.tmp.0123456789abcdef",
        own_cache / "00ff.index.abcdefgh.tmp",
    ]
    young, foreign = own_cache / f"{name}.tmp.4242", own_cache / "profile.tmp"
    for path in (*old, young, foreign):
        path.write_bytes(b"half")
    for path in (*old, foreign):
        os.utime(path, (time.time() - 7200, time.time() - 7200))
    ImageFolder(tree, rescan=True)
    assert sorted(own_cache.iterdir()) == sorted([own_cache / name, young, foreign])


def test_an_index_that_another_version_replaces_meanwhile_is_not_used(
    tree: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def overtaken(source: bytes, target: bytes) -> None:
        replace(source, target)
        Path(os.fsdecode(target)).write_bytes(b"penstock index 3, written by a newer version")

    monkeypatch.setattr(saved_columns.os, "replace", overtaken)
    assert paths_of(ImageFolder(tree)) == NAMES
