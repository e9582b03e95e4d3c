"""Data of the Hugging Face Hub is read at the commit at which it was opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import huggingface_hub
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from odd_images import encoded
from PIL import Image
from tar_files import write_tar

from penstock.loaders import LoaderError, create_loader, open_source
from penstock.loaders.data.remote import clients
from penstock.loaders.data.remote.pinned_urls import pin_url, without_commit
from penstock.pipelines import ImagePipeline

ONE, TWO = "1" * 40, "2" * 40


class Hub(MemoryFileSystem):
    """A stand-in for the Hub's file system: each revision of a repository is a folder."""

    protocol = "hf"
    cachable = False
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    head = ONE

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace("hf://", "memory://"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Return push(commit, level), which adds a tar of four pictures with that level and the next to a data set."""
    fsspec.register_implementation("hf", Hub, clobber=True)
    requests: list[tuple[str, str, str | None]] = []

    def repo_info(self: Any, name: str, *, repo_type: str, revision: str | None = None) -> Any:
        requests.append((name, repo_type, revision))
        if name != "user/photos":
            raise FileNotFoundError(name)
        return SimpleNamespace(sha=Hub.head)

    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", repo_info)

    def push(commit: str, level: int) -> None:
        members = []
        for number in range(4):
            data = encoded(Image.new("RGB", (8, 8), (level + number,) * 3), "BMP")
            members += [(f"{number}.bmp", data), (f"{number}.cls", b"0")]
        tar = write_tar(tmp_path / "a.tar", members).read_bytes()
        for revision in ("", f"@{commit}"):
            Hub().pipe_file(f"hf://datasets/user/photos{revision}/a.tar", tar)
        Hub.head = commit

    clients.open_client.cache_clear()
    yield SimpleNamespace(push=push, requests=requests)
    clients.open_client.cache_clear()
    Hub.store.clear()
    fsspec.register_implementation("hf", "huggingface_hub.HfFileSystem", clobber=True)


def start(source: Any) -> Any:
    pipeline = ImagePipeline(size=(8, 8), crop="full", flip=0.0)
    return create_loader(source, pipeline=pipeline, batch_size=1, workers=0, shuffle=False, dtype=torch.uint8)


def serve_levels(batches: Any) -> list[int]:
    return [int(images[0, 0, 0, 0]) for images, _ in batches]


@pytest.mark.parametrize("name", ["a.tar", "*.tar", "list"])
def test_a_push_during_an_epoch_has_no_effect_until_the_data_is_opened_again(hub: Any, name: str) -> None:
    url: Any = ["hf://datasets/user/photos/a.tar"] if name == "list" else f"hf://datasets/user/photos/{name}"
    hub.push(ONE, 10)
    with start(open_source(url, bytes_ahead=1)) as loader:
        batches = iter(loader)
        assert serve_levels([next(batches)]) == [10]
        hub.push(TWO, 90)
        assert serve_levels(batches) == [11, 12, 13]
        assert serve_levels(loader) == [10, 11, 12, 13]
    with start(open_source(url, bytes_ahead=1)) as loader:
        assert serve_levels(loader) == [90, 91, 92, 93]


def test_urls_contain_the_commit(hub: Any) -> None:
    root = b"hf://datasets/user/photos"
    pinned = root + b"@" + ONE.encode()
    Hub.head = ONE
    for revision in (b"", b"@main", b"@refs/pr/3", b"@a%2Fb"):
        for path in (b"", b"/", b"/train/a-*.tar", b"/x@y/{0..3}.tar"):
            assert pin_url(root + revision + path) == pinned + path
    assert {revision for _, _, revision in hub.requests} == {None, "main", "refs/pr/3", "a/b"}
    hub.requests.clear()
    for other in (
        pinned + b"/a.tar",
        b"s3://user/photos/a",
        b"hf://buckets/user/photos/a.tar",
        b"/hf/a",
        b"https://x/a/b",
    ):
        assert pin_url(other) == other
    assert not hub.requests
    assert pin_url(b"hf://user/photos/a.tar") == b"hf://user/photos@" + ONE.encode() + b"/a.tar"
    assert hub.requests == [("user/photos", "model", None)]


def test_a_missing_repository_is_reported_in_one_line(hub: Any) -> None:
    with pytest.raises(LoaderError) as caught:
        open_source("hf://datasets/user/nothing/a.tar")
    assert caught.value.code == "E-MISSING"
    assert "user/nothing" in str(caught.value)


def test_the_folder_of_a_local_copy_does_not_depend_on_the_commit() -> None:
    """A push that changes other files keeps the copied files in use."""
    for commit in (ONE, TWO):
        pinned = b"hf://datasets/user/photos@" + commit.encode()
        assert without_commit(pinned + b"/a.tar") == b"hf://datasets/user/photos/a.tar"
        assert without_commit(pinned) == b"hf://datasets/user/photos"
    for other in (b"hf://datasets/user/photos@main/a.tar", b"s3://user@host/photos/a", b"https://x@y/a"):
        assert without_commit(other) == other
