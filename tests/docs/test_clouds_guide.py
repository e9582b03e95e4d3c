"""The guide to clouds: what each recipe exports leads to the right requests, and the numbers of requests are true."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from photo_folder import photo
from range_server import serve_ranges
from tar_files import write_tar

from penstock.loaders import create_loader
from penstock.loaders.data.remote import clients
from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.pipelines import imagenet_train

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "clouds.md"
RECIPES = {
    title: (dict(re.findall(r"^export (\w+)=(\S+)$", code, re.MULTILINE)), re.findall(r"'(\w+://[^']+)'", code))
    for title, code in re.findall(r"^## (.*?)\n.*?^```sh\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
}
BODY = b"content of a tar"
PRIVATE_KEY = (
    rsa.generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
)
KEYS = "[{0}]\naws_access_key_id = key\naws_secret_access_key = secret\n"
# Variables that lead the recipe to the server, and the expected path and authorisation of its requests.
SERVED: dict[str, tuple[dict[str, str], str, str]] = {
    "AWS S3": ({"AWS_ENDPOINT_URL": "{url}"}, "/bucket/", r"AWS4.* Credential=key/\d+/us-west-2/s3/.*"),
    "Google Cloud Storage": (
        {"GOOGLE_APPLICATION_CREDENTIALS": "{folder}/key.json", "GOOGLE_BASE_URL": "{url}"},
        "/bucket/",
        "Bearer .+",
    ),
    "Azure Blob Storage": ({"AZURE_STORAGE_ENDPOINT": "{url}"}, "/container/", "SharedKey account:.*"),
    "Cloudflare R2, MinIO": ({"AWS_ENDPOINT_URL": "{url}"}, "/bucket/", r"AWS4.* Credential=key/\d+/auto/s3/.*"),
}


class Server(ThreadingHTTPServer):
    """Serves BODY at every address, and notes the path and the authorisation of each request."""

    seen: list[tuple[str, str]]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        self.server.seen.append((unquote(self.path), self.headers.get("Authorization", "")))
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.seen = []
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_guide_has_these_recipes() -> None:
    assert list(RECIPES) == [*SERVED, "Hugging Face"]


@pytest.mark.parametrize("title", SERVED)
def test_what_a_recipe_exports_signs_its_requests(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, title: str
) -> None:
    exports, (pattern,) = RECIPES[title]
    more, path, authorisation = SERVED[title]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(KEYS.format(exports.get("AWS_PROFILE", "default")))
    monkeypatch.setenv("HOME", str(tmp_path))
    url = f"http://127.0.0.1:{server.server_port}"
    key = {"type": "service_account", "client_email": "a@b", "private_key_id": "1", "private_key": PRIVATE_KEY}
    (tmp_path / "key.json").write_text(json.dumps(key))
    for name, value in (exports | more).items():
        monkeypatch.setenv(name, value.format(url=url, folder=tmp_path))
    clients.open_client.cache_clear()
    assert ObjectStore().stat(pattern.replace("{0000..1023}", "0007")).size == len(BODY)
    clients.open_client.cache_clear()
    (requested,) = server.seen
    assert requested[0] == f"{path}train-0007.tar"
    assert re.fullmatch(authorisation, requested[1])


def test_requests_are_as_many_as_the_table_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    photos, size = 128, 80_000
    for tar in range(2):
        files = [(f"{number}.jpg", photo(number).ljust(size, b"\0")) for number in range(tar, photos, 2)]
        write_tar(tmp_path / f"{tar}.tar", files)

    def count(**options: Any) -> list[int]:
        """Return the requests of an opening and of two epochs."""
        counts, url = list[int](), f"{server.url}/{{0..1}}.tar"
        with create_loader(url, pipeline=imagenet_train(16), batch_size=16, workers=0, **options) as loader:
            for _ in range(3):
                counts.append(server.requests.pop("all", 0))
                for _ in loader:
                    pass
        server.requests.clear()
        return counts

    with serve_ranges(tmp_path) as server, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the photos have no labels
        indexed, *at_random = count(bytes_ahead=1 << 20)
        assert photos + 2 <= indexed <= photos + 8  # a HEAD per tar, a GET per photo, the ends of the tars
        assert all(photos * 0.7 <= epoch <= photos for epoch in at_random)  # neighbours share a request
        assert count(bytes_ahead=1 << 20)[0] == 2
        opened, first, second = count(shuffle="blocks", local_cache=tmp_path / "copy")
        assert (opened, second) == (2, 0)
        assert first <= photos * size / 2**21 + 32  # the first batches are requested in small parts
