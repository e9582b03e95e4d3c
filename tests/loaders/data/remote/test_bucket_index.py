"""An index kept in a bucket: read instead of asking the storage, for mirrors too, and refused for other data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import penstock_here
from photo_folder import photo
from range_server import RangeServer, s3_environment, serve_ranges
from remote_photos import open_loader
from s3_server import S3Server, serve_s3
from served_rows import serve
from tar_files import write_tar

from penstock.loaders import LoaderError, open_source
from penstock.loaders.data.indexes.bucket_index import MANIFEST, read_bucket_index
from penstock.loaders.data.remote import clients
from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.requests import request_retries

NUM_PHOTOS = 12
INDEX = "s3://photos/index/"
IMAGES = [f"images/{'ab'[n % 2]}/{n:02}.jpg" for n in range(NUM_PHOTOS)]
# Data, and the options of its index.
DATA: dict[str, tuple[str, dict[str, Any]]] = {
    "braces": ("s3://photos/set/train-{0..2}.tar", {}),
    "wildcard": ("s3://photos/set/train-*.tar", {"label": "cls:float"}),
    "texts": ("s3://photos/set/*.tar", {"text": "txt"}),
    "folder of tars": ("s3://photos/set/", {}),
    "folder": ("s3://photos/images", {}),
    "images": ("s3://photos/images/*/*.jpg", {}),
    "table": ("s3://photos/t.csv", {}),
}
OPENING_A_TABLE = 3  # requests: it is read, and its version is asked for


def objects(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents: tars with labels and captions, the same photos in a folder, and a table of these."""
    for tar in range(3):
        members = []
        for n in range(tar, NUM_PHOTOS, 3):
            members += [(f"{n:02}.jpg", photo(n)), (f"{n:02}.cls", b"%d" % (n % 2)), (f"{n:02}.txt", b"photo %d" % n)]
        yield f"set/train-{tar}.tar", write_tar(folder / "x.tar", members).read_bytes()
    yield from ((name, photo(n)) for n, name in enumerate(IMAGES))
    yield "t.csv", ("path,label\n" + "".join(f"{name},{name[7]}\n" for name in IMAGES)).encode()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server with two equal buckets."""
    with serve_s3() as server:
        for bucket in ("photos", "mirror"):
            server.client.create_bucket(Bucket=bucket)
            for name, data in objects(tmp_path_factory.mktemp("tar")):
                server.client.put_object(Bucket=bucket, Key=name, Body=data)
        yield server


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache folder, and one attempt per request."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(request_retries.Deadline, "allows_attempt", lambda *_: False)
    clients.open_client.cache_clear()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that are asked for, one per request."""
    urls: list[str] = []

    def count(request: Any) -> Any:
        def counting(self: ObjectStore, url: str, *more: Any, **named: Any) -> Any:
            urls.append(url)
            return request(self, url, *more, **named)

        return counting

    for name in ("stat", "read", "list", "list_folder"):
        monkeypatch.setattr(ObjectStore, name, count(getattr(ObjectStore, name)))
    return urls


def write_index(data: str, out: object = INDEX, **options: str) -> None:
    """Run `penstock index DATA --out OUT`."""
    given = [word for name, value in options.items() for word in (f"--{name}", value)]
    run = penstock_here("index", data, "--out", out, *given)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.usefixtures("s3")
@pytest.mark.parametrize("kind", DATA)
def test_data_is_served_by_the_index_alone(kind: str, asked: list[str]) -> None:
    """From the bucket that was indexed and from a mirror: the same samples and identity, by ranges of the data only."""
    data, options = DATA[kind]
    plain = open_source(data, **options)
    write_index(data, **options)
    for bucket in ("photos", "mirror"):
        asked.clear()
        source: Any = open_source(data.replace("photos", bucket, 1), index=INDEX, **options)
        others = [url for url in asked if not url.startswith(INDEX)]
        assert others == [f"s3://{bucket}/t.csv"] * (OPENING_A_TABLE if kind == "table" else 0)
        assert len(asked) - len(others) <= 4  # the version of the manifest, the manifest, samples, labels
        assert (source.fingerprint, source.content) == (plain.fingerprint, plain.content)
        assert source.path(3).startswith(f"s3://{bucket}/".encode())
        asked.clear()
        with open_loader(source, workers=0) as loader, open_loader(plain, workers=0) as expected:
            assert serve(loader) == serve(expected)
        assert len(asked) <= 2 * NUM_PHOTOS  # a range each, for both loaders


@pytest.mark.usefixtures("s3")
def test_an_index_is_written_with_the_access_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    used, write = set[float](), ObjectStore.write

    def watched(self: ObjectStore, url: str, file: Any) -> None:
        used.add(self.access.retry_s)
        write(self, url, file)

    monkeypatch.setattr(ObjectStore, "write", watched)
    data, options = DATA["braces"]
    write_index(data, **options, **{"retry-s": "7"})
    assert used == {7.0}


@pytest.mark.usefixtures("s3")
def test_workers_and_a_local_copy_use_the_index(tmp_path: Path) -> None:
    data, options = DATA["braces"]
    write_index(data)
    caching: dict[str, Any] = {"local_cache": tmp_path / "copy", **options}
    with open_loader(data, workers=0) as loader:
        expected = serve(loader)
    with open_loader(data, workers=2, workers_are="processes", index=INDEX, **caching) as loader:
        assert serve(loader) == expected
    source: Any = open_source(data, **caching)
    assert source.local.has(np.arange(NUM_PHOTOS)).all()  # the copy is that of the same data without an index
    assert source.refreshed() is source


@pytest.mark.usefixtures("s3")
def test_a_list_is_compared_with_its_index_row_by_row(asked: list[str]) -> None:
    write_index("s3://photos/t.csv")
    rows = [(f"s3://mirror/{name}", n / 2) for n, name in enumerate(IMAGES)]
    asked.clear()
    source: Any = open_source(rows, index=INDEX)
    assert [url for url in asked if not url.startswith(INDEX)] == []
    assert source.targets(np.arange(2)).tolist() == [0, 0.5]  # the labels are those of the list
    assert bytes(source.read(5)) == photo(5)
    rng = np.random.default_rng(0)
    for _ in range(20):
        wrong = [rows[n] for n in rng.permutation(NUM_PHOTOS)][: rng.integers(6, NUM_PHOTOS + 1)]
        if wrong == rows:
            continue
        with pytest.raises(LoaderError, match="the index belongs to other data: ") as caught:
            open_source(wrong, index=INDEX)
        assert caught.value.code == "E-MISUSE"


@pytest.mark.usefixtures("s3")
def test_an_index_of_other_data_is_refused() -> None:
    write_index("s3://photos/set/train-*.tar")
    for data, options, words in (
        ("s3://photos/set/train-{0..2}.tar", {}, r"made of 'train-\*.tar', not of 'train-{0..2}.tar'"),
        ("s3://photos/set/train-*.tar", {"label": "folder"}, "made with default options, not with label='folder'"),
        ("s3://photos/set/train-*.tar", {"classes": ["x", "y"]}, "not with classes="),
        ("s3://photos/images/", {}, r"made of 'train-\*.tar', not of 'images/'"),
        ([f"s3://photos/{name}" for name in IMAGES], {}, "made of tar files, not of a list of images"),
    ):
        with pytest.raises(LoaderError, match=f"the index belongs to other data: .*{words}") as caught:
            open_source(data, index=INDEX, **options)
        assert caught.value.code == "E-MISUSE"
    write_index("s3://photos/t.csv")
    for data in ("s3://photos/images/", "s3://photos/images/*/*.jpg", "s3://photos/set/train-{0..2}.tar"):
        with pytest.raises(LoaderError, match="made of a list"):
            open_source(data, index=INDEX)
    with pytest.raises(LoaderError, match="there is no index here") as caught:
        open_source("s3://photos/t.csv", index="s3://photos/nowhere")
    assert caught.value.code == "E-MISSING"


@pytest.mark.usefixtures("s3")
def test_unsuitable_options_are_refused(tmp_path: Path) -> None:
    write_index("s3://photos/set/train-*.tar")
    with pytest.raises(ValueError, match="pass only one of them"):
        open_source("s3://photos/set/train-*.tar", index=INDEX, rescan=True)
    (tmp_path / "train-0.tar").write_bytes(b"")
    with pytest.raises(ValueError, match="only be used for data at URLs"):
        open_source(str(tmp_path / "train-*.tar"), index=INDEX)
    two = tmp_path / "two.csv"
    two.write_text(f"path\ns3://photos/{IMAGES[0]}\ns3://mirror/{IMAGES[1]}\n")
    (tmp_path / "images").mkdir()
    (tmp_path / "images/0.jpg").write_bytes(photo(0))
    for arguments, words in (
        ((tmp_path / "images", "--out", tmp_path / "out"), "for data at URLs"),
        (("s3://photos/t.csv", "--out", tmp_path / "out", "--subset", ":3"), "made of the whole data"),
        (("s3://photos/t.csv", "--out", "https://host/index/"), "can only be read"),
        ((two, "--out", tmp_path / "out"), "in several buckets"),
        (("s3://photos/t.csv", "--out", tmp_path / "train-0.tar"), "cannot be written"),
    ):
        run = penstock_here("index", *arguments)
        assert run.returncode == 2 + (words == "cannot be written")
        assert words in run.stderr


def test_a_stale_index_is_reported_when_a_range_is_read(s3: S3Server, tmp_path: Path) -> None:
    data = "s3://photos/stale/train-0.tar"
    for quality in range(2):
        members = [(f"{n}.jpg", photo(n + quality)) for n in range(3)]
        body = write_tar(tmp_path / "x.tar", members).read_bytes()
        s3.client.put_object(Bucket="photos", Key="stale/train-0.tar", Body=body)
        if not quality:
            write_index(data)
    for attempt in range(2):  # it is not made again behind the user's back
        source = open_source(data, index=INDEX)
        with pytest.raises(LoaderError, match="replaced since it was indexed") as caught:
            source.read(0)
        assert (caught.value.code, attempt) == ("E-CHANGED", attempt)
        assert f"write the index again with penstock index DATA --out '{INDEX}'" in caught.value.fix
    write_index(data)
    assert bytes(open_source(data, index=INDEX).read(0)) == photo(1)
    assert len(list((tmp_path / "cache/penstock").glob("bucket_*"))) == 1  # the download of the earlier index is gone


def test_a_damaged_index_is_refused(s3: S3Server, tmp_path: Path) -> None:
    data = "s3://photos/set/train-*.tar"
    write_index(data)
    write_index(data, tmp_path / "index")  # a folder
    assert len(open_source(data, index=tmp_path / "index")) == NUM_PHOTOS
    about = json.loads((tmp_path / "index" / MANIFEST.decode()).read_bytes())
    name = about["samples"]["name"]
    sound = (tmp_path / "index" / name).read_bytes()
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(sound), 8).tolist():
        damaged = bytearray(sound)
        damaged[at] ^= 1
        (tmp_path / "index" / name).write_bytes(damaged)
        s3.client.put_object(Bucket="photos", Key=f"index/{name}", Body=bytes(damaged))
        for place in (INDEX, tmp_path / "index"):
            with pytest.raises(LoaderError, match="the index is damaged") as caught:
                open_source(data, index=place)
            assert caught.value.code == "E-CORRUPT"
    s3.client.put_object(Bucket="photos", Key=f"index/{name}", Body=sound)
    assert len(open_source(data, index=INDEX)) == NUM_PHOTOS
    file = about["samples"]
    for changes in (
        {"format": 2},
        {"kind": "other"},
        {"samples": {**file, "digest": "../../x"}},
        {"samples": {**file, "name": "../x.index"}},
        {"samples": {**file, "num_bytes": -1}},
    ):
        (tmp_path / "index" / MANIFEST.decode()).write_text(json.dumps({**about, **changes}))
        with pytest.raises(LoaderError, match="not one of this version") as caught:
            open_source(data, index=tmp_path / "index")
        assert caught.value.code == "E-CORRUPT"


def test_an_index_has_no_addresses_and_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signed addresses of images are kept without their keys; those of tars, which it would need, are refused."""
    for name, data in objects(tmp_path):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).write_bytes(data)
    with serve_ranges(tmp_path) as server:
        for name, value in s3_environment(server.url).items():
            monkeypatch.setenv(name, value)
        signed = tmp_path / "signed.csv"
        write_table(signed, server, "?Signature=secret1")
        for data, out in (("s3://photos/set/train-{0..2}.tar", "tars"), (str(signed), "images")):
            write_index(data, tmp_path / out)
            kept = b"".join(file.read_bytes() for file in (tmp_path / out).iterdir())
            for word in (b"secret", b"Signature", b"127.0.0.1", b"s3://", b"photos/set", bytes(tmp_path)):
                assert word not in kept
        write_table(signed, server, "?Signature=secret2")
        source = open_source(signed, index=tmp_path / "images")
        assert bytes(source.read(7)) == photo(7)
        run = penstock_here("index", f"{server.url}/photos/set/train-0.tar?Signature=x", "--out", tmp_path / "no")
        assert "cannot contain queries" in run.stderr
        assert read_bucket_index(tmp_path / "tars").root == b""
        server.has_dates = False
        server.etags = dict.fromkeys([f"/photos/set/train-{tar}.tar" for tar in range(3)], "")
        with pytest.warns(UserWarning, match="reports no versions"):
            run = penstock_here("index", f"{server.url}/photos/set/train-{{0..2}}.tar", "--out", tmp_path / "no")
        assert "reports no versions" in run.stderr
        assert not (tmp_path / "no").exists()


def write_table(path: Path, server: RangeServer, query: str) -> None:
    path.write_text("path,label\n" + "".join(f"{server.url}/photos/{name}{query},{name[7]}\n" for name in IMAGES))
