"""Unusual keys in a bucket, folder markers, S3's reasons for a refusal, and sources of credentials."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from odd_images import encoded
from PIL import Image
from range_server import RangeServer
from s3_server import S3Server, serve_s3

from penstock.loaders import LoaderError, open_source
from penstock.loaders.data.requests import request_retries

NUM_PHOTOS = 3  # on the server
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE")


def png(level: int = 9) -> bytes:
    return encoded(Image.new("L", (2, 2), level), "PNG")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with serve_s3() as server:
        server.client.create_bucket(Bucket="keys")
        yield server


@pytest.fixture(autouse=True)
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_retries.Deadline, "allows_attempt", lambda *_: False)


def fill(s3: S3Server, prefix: str, *markers: str) -> str:
    for key in ("cat/1.png", "dog/1.png"):
        s3.client.put_object(Bucket="keys", Key=f"{prefix}/{key}", Body=png())
    for marker in markers:
        s3.client.put_object(Bucket="keys", Key=f"{prefix}/{marker}", Body=b"")
    return f"s3://keys/{prefix}/"


@pytest.mark.parametrize(
    "markers", [(), ("",), ("cat/", "dog/"), ("", "cat/", "dog/"), ("cat_$folder$",), ("cat/sub/",)]
)
def test_markers_of_empty_folders_are_ignored(s3: S3Server, markers: tuple[str, ...]) -> None:
    url = fill(s3, f"markers{len(markers)}{'-'.join(markers).replace('/', '_')}", *markers)
    assert len(open_source(url)) == len(open_source(f"{url}*/*.png")) == 2
    assert len(open_source(f"{url}cat/")) == 1


def test_markers_of_folders_named_like_files_are_ignored(s3: S3Server) -> None:
    """Only the slash at its end distinguishes such a marker from a file, and the client omits the slash."""
    url = fill(s3, "dotted", "cat/v1.0/", "scans.png/", "scans.png/deep/")
    for key in ("cat/v1.0/2.png", "scans.png/deep/3.png"):
        s3.client.put_object(Bucket="keys", Key=f"dotted/{key}", Body=png())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(open_source(url)) == len(open_source(f"{url}*.png")) == 4
        assert len(open_source(f"{url}scans*.png")) == len(open_source(f"{url}scans.png/")) == 1
    s3.client.put_object(Bucket="keys", Key="dotted/dog/empty.png", Body=b"")
    assert len(open_source(f"{url}*y.png")) == 1


def test_a_question_mark_is_a_wildcard(s3: S3Server) -> None:
    url = fill(s3, "wild")
    assert len(open_source(f"{url}ca?/1.png")) == 1
    assert len(open_source(f"{url}???/?.png")) == 2
    with pytest.raises(LoaderError, match="no object matches this pattern"):
        open_source(f"{url}????/?.png")


@pytest.mark.parametrize("key", ["cat//2.png", "cat/./2.png", "cat/../2.png", "cat/\t2.png"])
def test_an_unsupported_key_is_named(s3: S3Server, key: str) -> None:
    """It is not mistaken for another key or for a network failure."""
    url = fill(s3, f"odd{key.count('.')}{len(key)}", key)
    s3.client.put_object(Bucket="keys", Key=url.removeprefix("s3://keys/") + "cat/2.png", Body=png(200))
    with pytest.raises(LoaderError, match=r"E-UNSUPPORTED.*2.png") as caught:
        open_source(url)
    assert "network" not in str(caught.value)
    assert ("control character" in str(caught.value)) == ("\t" in key)
    if ".." not in key:
        with pytest.raises(LoaderError, match=r"E-UNSUPPORTED.*2.png"):
            open_source([(url + key, 0)])


REASONS = {
    "AccessDenied": "do not allow it",
    "RequestTimeTooSkewed": "clock",
    "SignatureDoesNotMatch": "signature",
    "InvalidAccessKeyId": "access key",
    "ExpiredToken": "expired",
    "NoSuchBucket": "no such bucket",
    "AuthorizationHeaderMalformed": "region, eu-west-1",
}


@pytest.mark.parametrize("reason", REASONS)
def test_s3s_reason_for_a_refusal_is_reported(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    for name, value in zip(("AWS_ENDPOINT_URL", *KEYS[:3]), (server.url, "a", "b", "us-east-1"), strict=True):
        monkeypatch.setenv(name, value)
    server.fault = lambda path, number: 404 if reason.startswith("NoSuch") else 400 if "Token" in reason else 403
    server.error_body = f"<Error><Code>{reason}</Code><Region>eu-west-1</Region></Error>".encode()
    for source in ("s3://b/train/", "s3://b/a.tar", [("s3://b/a.png", 0)]):
        with pytest.raises(LoaderError, match=REASONS[reason] if source == "s3://b/train/" else "E-"):
            open_source(source)


def write_profiles(home: Path) -> None:
    (home / ".aws").mkdir()
    keys = "aws_access_key_id = {0}\naws_secret_access_key = {0}-secret\n"
    (home / ".aws" / "credentials").write_text(f"[default]\n{keys.format('one')}[lab]\n{keys.format('two')}")
    config = "[default]\nregion = us-east-1\n[profile lab]\nregion = us-east-1\n[profile role]\nrole_arn = arn:x\n"
    (home / ".aws" / "config").write_text(config)


def test_keys_and_region_are_read_from_a_profile(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = fill(s3, "profiles")
    write_profiles(tmp_path)
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for profile in (None, "default", "lab"):
        if profile is not None:
            monkeypatch.setenv("AWS_PROFILE", profile)
        assert len(open_source(url)) == 2
    monkeypatch.setenv("AWS_PROFILE", "lap")
    with pytest.raises(LoaderError, match=r"E-ACCESS.*AWS_PROFILE is 'lap'.*perhaps 'lab'") as caught:
        open_source(url)
    assert "secret" not in str(caught.value)


def test_corrected_settings_are_used_at_once(
    s3: S3Server, server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fill(s3, "corrected")
    server.fault, server.error_body = (lambda path, number: 403), b"<Error><Code>InvalidAccessKeyId</Code></Error>"
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    with pytest.raises(LoaderError, match="access key"):
        open_source(url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    assert len(open_source(url)) == 2
