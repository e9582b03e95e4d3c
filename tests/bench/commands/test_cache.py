"""`penstock cache` as a user runs it: exit codes, messages, signals, several builders."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from pathlib import Path

import pytest
from command_line import penstock, penstock_here
from forked_commands import Commands
from photo_folder import write_folder
from processes import eventually

COUNT = 40  # of the folder's fixture


@pytest.fixture(scope="module")
def cache(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cache") / "x.h5"
    run = penstock_here("cache", "build", photos, path, "--workers", 2)
    assert run.returncode == 0, run.stderr
    return path


def test_build_then_nothing_to_do(photos: Path, tmp_path: Path) -> None:
    first = penstock("cache", "build", photos, tmp_path / "x.h5", "--workers", 2)
    assert first.returncode == 0, first.stderr
    assert [line for line in first.stderr.splitlines() if " MB written" not in line] == []  # progress on slow machines
    assert f"{COUNT} images, 3 classes (jpeg, lossless)" in first.stdout
    assert f"stored {COUNT} as JPEGs in strips" in first.stdout
    assert re.search(rf"built {COUNT} images in [\d.]+ s: \d+ images/s", first.stdout)
    assert "lossy" not in first.stdout
    again = penstock_here("cache", "build", photos, tmp_path / "x.h5")
    assert again.returncode == 0
    assert "nothing to do" in again.stdout
    assert os.listdir(tmp_path) == ["x.h5"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--encoding", "raw", "--resize", 32), "raw, lossy: shorter side 32"),
        (("--resize", 32, "--longer-side", "--quality", 80), "jpeg, lossy: longer side 32, quality 80"),
    ],
)
def test_a_lossy_cache_says_so(photos: Path, tmp_path: Path, options: tuple[object, ...], words: str) -> None:
    run = penstock_here("cache", "build", photos, tmp_path / "x.h5", "--workers", 0, *options)
    assert run.returncode == 0, run.stderr
    assert words in run.stdout
    assert re.search(r"lossy: PSNR \d+\.\d dB", run.stdout)
    record = json.loads(penstock_here("cache", "info", tmp_path / "x.h5", "--json").stdout)
    assert record["lossless"] is False
    assert 10 < record["psnr_db"] < 99


def test_info(cache: Path, photos: Path) -> None:
    text = penstock_here("cache", "info", cache)
    assert text.returncode == 0
    assert f"{COUNT} images" in text.stdout
    record = json.loads(penstock_here("cache", "info", cache, "--json").stdout)
    assert record["samples"] == COUNT
    assert record["shards"] == 1
    assert record["file_bytes"] == cache.stat().st_size
    assert record["source_bytes"] == sum(path.stat().st_size for path in photos.rglob("*.jpg"))
    assert record["source"]["root"] == str(photos)
    assert {"penstock", "torch", "simplejpeg", "h5py", "hdf5"} <= set(record["versions"])


def test_verify(cache: Path, photos: Path, tmp_path: Path) -> None:
    sound = penstock_here("cache", "verify", cache, "--source", photos)
    assert (sound.returncode, sound.stderr) == (0, "")
    assert "sound" in sound.stdout
    content = bytearray(cache.read_bytes())
    content[10_000] ^= 1
    (tmp_path / "x.h5").write_bytes(content)
    damaged = penstock_here("cache", "verify", tmp_path / "x.h5", "--json")
    assert damaged.returncode == 4
    record = json.loads(damaged.stdout)
    assert record["sound"] is False
    assert len(record["damaged"]) == 1
    assert record["damaged"][0]["name"].startswith("class0/")


def test_verify_reports_another_source(cache: Path, tmp_path: Path) -> None:
    other = write_folder(tmp_path / "other", COUNT + 1)
    run = penstock_here("cache", "verify", cache, "--source", other)
    assert run.returncode == 4
    assert "E-STALE" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("build", "{photos}", "{tmp}/notes.txt"), 4, "E-CACHE"),
        (("build", "{tmp}/none", "{tmp}/x.h5"), 3, "E-NODATA"),
        (("build", "{photos}", "{photos}/x.h5"), 2, "E-MISUSE"),
        (("build", "{photos}", "{tmp}/x.h5", "--encoding", "tiff"), 2, "jpeg, raw"),
        (("build", "{photos}", "{tmp}/x.h5", "--encoding", "raw", "--quality", "80"), 2, "quality"),
        (("build", "{photos}", "{tmp}/x.h5", "--longer-side"), 2, "resize"),
        (("build", "{photos}", "{tmp}/x.h5", "--shards", "41"), 2, "shards"),
        (("info", "{tmp}/none.h5"), 3, "E-MISSING"),
        (("info", "{tmp}/notes.txt"), 4, "E-CACHE"),
        (("verify", "{tmp}/notes.txt"), 4, "E-CACHE"),
        (("verify", "{tmp}"), 4, "E-CACHE"),
    ],
)
def test_exit_codes(photos: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, words: str) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    run = penstock_here("cache", *(argument.format(photos=photos, tmp=tmp_path) for argument in arguments))
    assert run.returncode == code, run.stderr
    assert words in run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not list(photos.rglob("*.h5*"))


def test_ranks_with_the_variables_of_torchrun_build_a_set(photos: Path, tmp_path: Path, commands: Commands) -> None:
    """The first rank, which writes the manifest, waits for the other."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
    folder = tmp_path / "set"
    build = ("cache", "build", photos, folder, "--shards", 2, "--workers", 0)
    first = commands.start(*build, environment={**job, "RANK": "0"})
    second = commands.start(*build, environment={**job, "RANK": "1"}, stop_after=COUNT // 2)
    assert eventually(second.stopped, within_s=60), (first.errors, second.errors)
    assert eventually(lambda: list(folder.glob("*.h5")) != [], within_s=60), first.errors
    os.kill(second.pid, signal.SIGCONT)
    assert (first.wait(), second.wait()) == (0, 0), (first.errors, second.errors)
    assert len(os.listdir(folder)) == 3
    assert json.loads(penstock_here("cache", "info", folder, "--json").stdout)["samples"] == COUNT
    assert penstock_here("cache", "verify", folder, "--source", photos).returncode == 0


def test_tasks_of_a_slurm_array_build_a_set(photos: Path, tmp_path: Path) -> None:
    for task in (2, 1):
        array = {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_MIN": "1"}
        command = ("cache", "build", photos, tmp_path / "set", "--shards", 4, "--workers", 0)
        run = penstock_here(*command, env=array)
        assert run.returncode == 0, run.stderr
        assert ("not complete" in run.stdout) == (task == 2)
    assert penstock_here("cache", "verify", tmp_path / "set", "--source", photos).returncode == 0
    # Without --shards a job array may have another purpose: each task builds its own file.
    run = penstock_here("cache", "build", photos, tmp_path / "x.h5", "--workers", 0, env=array)
    assert run.returncode == 0
    assert (tmp_path / "x.h5").is_file()
