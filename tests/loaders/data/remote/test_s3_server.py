"""Data on an S3 server: patterns, wrong or expired credentials, missing buckets, replaced objects."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from range_server import RangeServer
from remote_photos import open_loader
from s3_server import S3Server, serve_s3
from served_rows import serve
from tar_files import write_tar

from penstock.loaders import LoaderError, open_source
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.remote import clients
from penstock.loaders.data.remote.curl_requests import has_curl
from penstock.loaders.data.remote.fetcher import Fetcher, Range
from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.remote.path_or_url import read_whole
from penstock.loaders.data.requests import request_retries
from penstock.loaders.data.requests.pace import Pace

NUM_PHOTOS = 37
TARS = "s3://photos/set/train-*.tar"


def make_tar(photos: ImageFolder, part: int) -> bytes:
    """Make a tar of every third photo."""
    with tempfile.TemporaryDirectory() as folder:
        files = [(f"{index:04}.jpg", photos.read(index)) for index in range(part, NUM_PHOTOS, 3)]
        return write_tar(Path(folder) / "x.tar", files).read_bytes()


@pytest.fixture(scope="module")
def s3(photos: ImageFolder) -> Iterator[S3Server]:
    """A server with three tars."""
    with serve_s3() as server:
        server.client.create_bucket(Bucket="photos")
        for part in range(3):
            server.client.put_object(Bucket="photos", Key=f"set/train-{part:04}.tar", Body=make_tar(photos, part))
        yield server


@pytest.fixture(autouse=True)
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clients that read the environment again and fail without a retry."""
    monkeypatch.setattr(request_retries.Deadline, "allows_attempt", lambda *_: False)
    clients.open_client.cache_clear()
    yield
    clients.open_client.cache_clear()


@pytest.mark.usefixtures("s3")
@pytest.mark.parametrize("url", ["s3://photos/set/train-0009.tar", "s3://nobody/train-*.tar"])
def test_a_missing_key_or_bucket_is_reported_in_one_line(url: str) -> None:
    with pytest.raises(LoaderError, match="no such bucket") as caught:
        open_source(url)
    assert caught.value.code == "E-MISSING"
    assert "\n" not in str(caught.value)


@pytest.fixture
def checked(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """The server with checked credentials; the current ones belong to a user who may read the bucket."""
    import boto3

    iam = boto3.client("iam")
    iam.create_user(UserName="reader")
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    rule = {"Effect": "Allow", "Action": ["s3:GetObject", "s3:ListBucket"], "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [rule]})
    iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=policy)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    s3.count_free_actions(0)
    yield s3
    s3.count_free_actions(None)
    iam.delete_access_key(UserName="reader", AccessKeyId=key["AccessKeyId"])
    iam.delete_user_policy(UserName="reader", PolicyName="read")
    iam.delete_user(UserName="reader")


@pytest.mark.parametrize("name", ["set/train-0001.tar", "set/a b+c#d?e%20\u00e4.bin"])
def test_any_client_can_send_the_plain_request_for_an_object(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The signature, which the server does not check here, is the same as boto3's."""
    if "#" in name:
        s3.client.put_object(Bucket="photos", Key=name, Body=b"odd")
    url = f"s3://photos/{name}"
    plain, headers = clients.client_of(url).plain_request(url) or ("", {})
    assert headers == {}
    assert urlopen(plain).read() == bytes(read_whole(url.encode()))
    address, _, query = plain.partition("?")
    date = datetime.strptime(parse_qs(query)["X-Amz-Date"][0], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: date)
    request = AWSRequest("GET", address)
    botocore.auth.S3SigV4QueryAuth(Credentials("testing", "testing"), "s3", "us-east-1", 3600).add_auth(request)
    assert parse_qs(urlsplit(request.url).query) == parse_qs(query)


def test_the_plain_request_for_a_public_bucket_is_not_signed(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    url = "s3://photos/set/train-0001.tar"
    expected = f"{s3.url}/photos/set/train-0001.tar", {}
    assert clients.client_of(url).plain_request(url) == expected
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert clients.client_of(url).plain_request(url) == expected


def test_no_plain_request_is_made_where_an_address_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SSE_CUSTOMER_KEY_BASE64", "a2V5")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "me")
    for url in ("s3://photos/a", "az://container/a", "gs://bucket/a", "memory://a"):
        assert clients.client_of(url).plain_request(url) is None


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("wrong", [{}, {"AWS_ACCESS_KEY_ID": "nobody"}, {"AWS_SECRET_ACCESS_KEY": "wrong"}])
def test_wrong_credentials_are_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, wrong: dict[str, str]) -> None:
    for name, value in wrong.items():
        monkeypatch.setenv(name, value)
    for url in (TARS, TARS.replace("*", "0001")):
        if not wrong:
            assert len(open_source(url)) >= NUM_PHOTOS // 3
            continue
        with pytest.raises(LoaderError, match=r"InvalidAccessKeyId|SignatureDoesNotMatch|do not allow it") as caught:
            open_source(url)
        assert caught.value.code == "E-ACCESS"
        assert "environment" in caught.value.fix
        assert "\n" not in str(caught.value)


def test_an_expired_token_is_reported_in_one_line(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 answers 400, with the reason in the body of a GET; moto's tokens never expire."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    server.fault = lambda path, number: 400
    server.error_body = b"<?xml version='1.0'?>\n<Error><Code>ExpiredToken</Code></Error>"
    for request in (lambda: ObjectStore().stat("s3://b/a.tar"), lambda: ObjectStore().read("s3://b/a.tar", 0, 9)):
        with pytest.raises(LoaderError, match="has expired or is wrong") as caught:
            request()
        assert caught.value.code == "E-ACCESS"
    server.error_body = b"<?xml version='1.0'?>\n<Error><Code>RequestTimeout</Code></Error>"
    with pytest.raises(LoaderError, match="400") as caught:
        ObjectStore().read("s3://b/a.tar", 0, 9)
    assert caught.value.code == "E-READ"  # S3's code for a slow connection, which may recover


def test_an_object_that_is_replaced_during_an_epoch_is_refused(s3: S3Server, photos: ImageFolder) -> None:
    """Then it is opened again. The new content has the same size: only the ETag differs."""
    s3.client.put_object(Bucket="photos", Key="changing/a.tar", Body=make_tar(photos, 0))
    source = open_source("s3://photos/changing/a.tar", bytes_ahead=1)
    with open_loader(source, workers=0, batch_size=2) as loader:
        assert len(serve(loader, 2)) == 4
        changed = bytearray(make_tar(photos, 0))
        changed[-1] ^= 1
        s3.client.put_object(Bucket="photos", Key="changing/a.tar", Body=bytes(changed))
        with pytest.raises(LoaderError, match="replaced since it was indexed") as caught:
            serve(loader)
    assert caught.value.code == "E-CHANGED"
    with pytest.warns(UserWarning, match="data after the end of a tar"):  # because of the changed byte
        assert len(open_source("s3://photos/changing/a.tar")) == len(source)
    s3.client.put_object(Bucket="photos", Key="changing/a.tar", Body=b"shorter")
    with pytest.raises(LoaderError, match=r"fewer bytes|replaced") as caught:
        source.read(len(source) - 1)
    assert caught.value.code == "E-CHANGED"  # not 416, which would be retried


@pytest.mark.skipif(not has_curl(), reason="pycurl is not installed")
@pytest.mark.usefixtures("s3")  # whose server does not check signatures in addresses
def test_libcurl_reads_signed_addresses_and_signs_refused_ones_again(monkeypatch: pytest.MonkeyPatch) -> None:
    url, store = "s3://photos/set/train-0001.tar", ObjectStore()
    found = store.stat(url)
    fetching = Fetcher(store, lambda at: Range(at, url, 0, found.size, found.version), Pace(1, 1 << 20, 1), 1 << 20)
    read = store.read
    monkeypatch.setattr(store, "read", None)
    expected = bytes(fetching.take(0))
    assert expected[257:262] == b"ustar"
    monkeypatch.setattr(store, "read", read)
    plain = fetching._plain._known[url]
    fetching._plain._known[url] = plain._replace(url=plain.url.replace("0001", "refused"))
    assert bytes(fetching.take(1)) == expected  # by the store
    monkeypatch.setattr(store, "read", None)
    assert bytes(fetching.take(2)) == expected
