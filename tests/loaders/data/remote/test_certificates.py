"""Certificates of servers: the files that boto3, requests and OpenSSL honour are honoured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from range_server import serve_ranges
from tls_server import BODY, Authority, make_authority, serve_tls

from penstock.loaders import LoaderError
from penstock.loaders.data.remote.certificates import VARIABLES
from penstock.loaders.data.remote.curl_requests import has_curl
from penstock.loaders.data.remote.fetcher import Fetcher, Range
from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.requests import request_retries
from penstock.loaders.data.requests.pace import Pace


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def url(authority: Authority) -> Iterator[str]:
    """The address of a server whose authority is not known to the system."""
    with serve_tls(authority.sign("good.pem", "localhost", (-1, 1))) as url:
        yield url


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_retries.Deadline, "allows_attempt", lambda *_: False)
    for name in (*VARIABLES, "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


def read(url: str) -> bytes:
    """Read a URL, and the same address as an object of S3."""
    store = ObjectStore()
    return bytes(store.read(url, 0, store.stat(url).size).data)


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("scheme", ["https", "s3"])
def test_variables_that_name_certificates_are_honoured(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, url: str, name: str, scheme: str
) -> None:
    """The environment is corrected in one process: the next attempt sees it."""
    if scheme == "s3":
        for variable, value in {"ENDPOINT_URL": url, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}.items():
            monkeypatch.setenv(f"AWS_{variable}", value)
    address = f"{url}/a.bin" if scheme == "https" else "s3://bucket/a.bin"
    with pytest.raises(LoaderError, match="UnknownIssuer"):
        read(address)
    monkeypatch.setenv(name, str(authority.path))
    if (scheme, name) == ("https", "AWS_CA_BUNDLE"):
        with pytest.raises(LoaderError, match="UnknownIssuer"):
            read(address)
    else:
        assert read(address) == BODY


def test_a_folder_of_certificates_is_read(monkeypatch: pytest.MonkeyPatch, authority: Authority, url: str) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.path.parent))
    assert read(f"{url}/a.bin") == BODY


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_a_wrong_file_of_certificates_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, content: bytes | None
) -> None:
    path = tmp_path / "own.pem"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(path))
    with pytest.raises(LoaderError, match=r"own\.pem") as caught:
        read(f"{url}/a.bin")
    assert caught.value.code == "E-ACCESS"
    assert "REQUESTS_CA_BUNDLE" in caught.value.fix


@pytest.mark.skipif(not has_curl(), reason="pycurl is not installed")
def test_libcurl_trusts_the_same_files(monkeypatch: pytest.MonkeyPatch, authority: Authority, url: str) -> None:
    """A server that libcurl does not trust is left to the store, which names the cause."""

    def fetch() -> bytes:
        store = ObjectStore()
        fetcher = Fetcher(
            store, lambda at: Range(at, f"{url}/a.bin", 0, len(BODY), found.version), Pace(1, 1 << 20, 1), 1 << 20
        )
        if is_trusted:
            monkeypatch.setattr(store, "read", None)
        return bytes(fetcher.take(0))

    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    found, is_trusted = ObjectStore().stat(f"{url}/a.bin"), True
    assert fetch() == BODY
    monkeypatch.delenv("SSL_CERT_FILE")
    is_trusted = False
    with pytest.raises(LoaderError, match="UnknownIssuer"):
        fetch()


@pytest.mark.parametrize(
    ("host", "days", "words"),
    [
        ("localhost", (-3, -2), "has expired"),
        ("localhost", (2, 3), "not valid yet"),
        ("other.example", (-1, 1), "of another host"),
    ],
)
def test_what_is_wrong_with_a_certificate_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, host: str, days: tuple[int, int], words: str
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    with serve_tls(authority.sign(f"{days[0]}-{host}.pem", host, days)) as url:
        with pytest.raises(LoaderError, match=words) as caught:
            ObjectStore().stat(f"{url}/a.bin")
        assert caught.value.code == "E-ACCESS"  # not repeated


def test_an_unknown_authority_and_a_server_without_tls_say_what_to_do(url: str, tmp_path: Path) -> None:
    store = ObjectStore()
    with pytest.raises(LoaderError, match="E-ACCESS") as caught:
        store.stat(f"{url}/a.bin")
    assert "set SSL_CERT_FILE" in caught.value.fix
    with serve_ranges(tmp_path) as plain, pytest.raises(LoaderError, match="does not use TLS") as caught:
        store.stat(plain.url.replace("http://", "https://") + "/a.bin")
    assert "http://" in caught.value.fix
    assert store.retries == 0
