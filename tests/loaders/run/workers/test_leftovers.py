"""Leftovers of dead processes are removed, and nothing else."""

from __future__ import annotations

import os
import socket
import tempfile
from multiprocessing import process, util
from pathlib import Path

import pytest
from forked_commands import Commands

from penstock.loaders.run.workers import leftovers
from penstock.loaders.run.workers.leftovers import identity

MARK = "penstock-owner"


def name_of(what: str) -> str:
    """Return the identity of a process that is alive, gone, or cannot be seen from here."""
    boot, namespace, pid, start = identity().split("-")
    parts = {
        "lives": (boot, namespace, pid, start),
        "gone": (boot, namespace, pid, "7"),
        "on another machine": ("0" * 32, namespace, pid, "7"),
        "in another container": (boot, "1", pid, "7"),
        "nonsense": ("x", "y", "z", ""),
    }
    return "-".join(parts[what])


@pytest.mark.parametrize("owner", ["lives", "gone", "on another machine", "in another container", "nonsense"])
def test_only_leftovers_of_dead_processes_are_removed(
    owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "DEV_SHM", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    semaphore, folder = tmp_path / f"sem.penstock-{name_of(owner)}-abcd_12x", tmp_path / "pymp-abcd_12x"
    for path in (semaphore, tmp_path / "sem.mp-abcd_12x", tmp_path / "sem.penstock-"):
        path.touch()
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(folder)  # the path may be too long for a socket
        listener.bind("listener-abcd_12x")
    (folder / MARK).symlink_to(name_of(owner))
    (tmp_path / "pymp-unmarked").mkdir()
    leftovers.sweep()
    assert [semaphore.exists(), folder.exists()] == [owner != "gone"] * 2
    kept = {"sem.mp-abcd_12x", "sem.penstock-", "pymp-unmarked"}
    assert kept <= set(os.listdir(tmp_path))


def test_a_folder_with_other_files_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / "pymp-abcd_12x"
    folder.mkdir()
    (folder / MARK).symlink_to(name_of("gone"))
    (folder / "of somebody else").touch()
    leftovers.sweep()
    assert (folder / "of somebody else").exists()


@pytest.mark.parametrize("links", [True, False])
def test_an_inherited_folder_is_left_to_its_owner(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = process.current_process()._config  # type: ignore[attr-defined]
    inherited = tmp_path / "pymp-of-the-parent"
    inherited.mkdir()
    (inherited / MARK).symlink_to(name_of("gone"))
    monkeypatch.setitem(config, "tempdir", str(inherited))
    monkeypatch.setattr(util, "Finalize", lambda *_, **__: None)  # pytest removed it long ago
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if not links:

        def refuse(target: str, link: str) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "symlink", refuse)
    leftovers.mark_temporary_folder()
    own = Path(config["tempdir"])
    assert own.parent == tmp_path
    assert own != inherited
    assert links == (own / MARK).is_symlink()
    if links:
        leftovers.mark_temporary_folder()
        assert config["tempdir"] == str(own)


SENDS_AT_ITS_END = """
import os, sys
from multiprocessing import util
from penstock.loaders.run.workers import leftovers

leftovers.mark_temporary_folder()
if sys.argv[1] == "ours":
    leftovers.remove_own_folder_at_exit()
folder, left, rmdir = util.get_temp_dir(), int(sys.argv[2]), os.rmdir
open(os.path.join(folder, "of the data set"), "w").close()

def rmdir_while_a_thread_opens_a_socket(path, **more):
    global left
    if left:
        left -= 1
        open(os.path.join(folder, f"listener-{left}"), "w").close()
    rmdir(path, **more)

os.rmdir = rmdir_while_a_thread_opens_a_socket
"""


@pytest.mark.parametrize(("whose", "sockets", "remain"), [("ours", 2, 0), ("ours", 99, 1), ("multiprocessing's", 1, 1)])
def test_a_worker_that_still_sends_removes_its_folder(
    tmp_path: Path, commands: Commands, whose: str, sockets: int, remain: int
) -> None:
    script, temporary = tmp_path / "script.py", tmp_path / "temporary"
    script.write_text(SENDS_AT_ITS_END)
    temporary.mkdir()
    code, command = commands.run(whose, sockets, script=script, temporary=temporary)
    assert code == 0, command.errors
    folders = list(temporary.iterdir())
    assert len(folders) == remain
    # The last case is the control: the result without our removal.
    assert (command.errors == "") == (whose == "ours"), command.errors
    assert all((folder / MARK).is_symlink() for folder in folders if whose == "ours")
