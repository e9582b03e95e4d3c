"""Settings of S3: keys from the chain of boto3 or from the AWS files, regions, endpoints; corrected while in use."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from forked_commands import Commands
from key_server import BODY, KeyServer, serve_keys

from penstock.loaders import LoaderError
from penstock.loaders.data.remote import clients
from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.requests import request_retries

URL = "s3://bucket/a"


@pytest.fixture
def server() -> Iterator[KeyServer]:
    with serve_keys() as server:
        yield server


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: KeyServer) -> Path:
    """The folder of the AWS files, with no other settings than the endpoint."""
    monkeypatch.setattr(request_retries.Deadline, "allows_attempt", lambda *_: False)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "REGION", "DEFAULT_REGION", "PROFILE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    (tmp_path / ".aws").mkdir()
    clients.open_client.cache_clear()
    return tmp_path / ".aws"


@pytest.fixture(params=["boto3", "no boto3"])
def chain(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "no boto3":
        monkeypatch.setitem(sys.modules, "boto3", None)
    return str(request.param)


def keys(name: str) -> str:
    return f"aws_access_key_id = {name}\naws_secret_access_key = secret\n"


def read() -> bytes:
    store = ObjectStore()
    return bytes(store.read(URL, 0, store.stat(URL).size).data)


# ---- the chain ----


def test_keys_and_regions_of_profiles_are_read(
    server: KeyServer, aws: Path, monkeypatch: pytest.MonkeyPatch, chain: str
) -> None:
    (aws / "credentials").write_text(f"[default]\n{keys('one')}[lab]\n{keys('two')}")
    (aws / "config").write_text(
        f"[default]\nregion = eu-west-1\n[profile lab]\nregion = eu-west-2\n[profile old]\n{keys('three')}"
    )
    assert read() == BODY
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert read() == BODY
    monkeypatch.setenv("AWS_PROFILE", "old")
    assert read() == BODY
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "own")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "own")
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    assert read() == BODY
    assert [seen[1:] for seen in server.seen[::2]] == [
        ("one", "eu-west-1"),
        ("two", "eu-west-2"),
        ("three", "us-east-1"),
        ("own", "eu-west-3"),
    ]
    monkeypatch.setenv("AWS_PROFILE", "labb")
    with pytest.raises(LoaderError, match=r"E-ACCESS.*'labb'.*default, lab, old.*perhaps 'lab'"):
        read()


@pytest.mark.usefixtures("chain")
@pytest.mark.parametrize("form", ["endpoint_url = {}", "services = own\n[services own]\ns3 =\n  endpoint_url = {}"])
def test_the_endpoint_of_a_profile_is_used(
    server: KeyServer, aws: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    (aws / "config").write_text(f"[default]\n{keys('one')}{form.format(server.url)}\n")
    assert read() == BODY
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(LoaderError, match="refused"):
        read()


def test_an_error_names_the_chain_and_what_it_found(
    server: KeyServer, aws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        LoaderError, match=r"E-ACCESS.*no keys for S3: boto3's chain.*'default'.*credentials \(absent\)"
    ):
        read()
    assert not server.seen  # at once
    (aws / "credentials").write_text(f"[lab]\n{keys('one')}")
    monkeypatch.setenv("AWS_PROFILE", "lab")
    server.keys = {"another"}
    with pytest.raises(LoaderError, match=r"ExpiredToken\); keys from boto3: shared-credentials-file, profile 'lab'"):
        read()
    monkeypatch.setitem(sys.modules, "boto3", None)
    clients.open_client.cache_clear()
    with pytest.raises(LoaderError, match=r"ExpiredToken\); keys from the profile 'lab'"):
        read()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "own")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    with pytest.raises(LoaderError, match=r"ExpiredToken\); keys from the environment") as caught:
        read()
    assert "hidden" not in str(caught.value)


def test_a_profile_that_needs_boto3_says_so_without_it(aws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    (aws / "config").write_text("[default]\ncredential_process = /bin/true\n")
    with pytest.raises(LoaderError, match=r"E-ACCESS.*needs boto3"):
        read()


# ---- keys that expire ----


def write_process(aws: Path, minutes: float) -> Path:
    """Let a command give keys of its own for `minutes`: one, then two, and so on; return the file with their number."""
    script, count = aws / "give.py", aws / "count"
    count.write_text("0")
    script.write_text(
        "import json, pathlib, sys\n"
        f"count = pathlib.Path({str(count)!r})\n"
        "number = int(count.read_text())\n"
        "if number < 0: sys.exit('no keys today')\n"
        "count.write_text(str(number + 1))\n"
        f"until = {(datetime.now(timezone.utc) + timedelta(minutes=minutes)).isoformat()!r}\n"
        "keys = {'AccessKeyId': f'key{number}', 'SecretAccessKey': 's', 'SessionToken': 't', 'Expiration': until}\n"
        "print(json.dumps({'Version': 1, **keys}))\n"
    )
    (aws / "config").write_text(f"[default]\ncredential_process = {sys.executable} {script}\n")
    return count


def test_keys_are_renewed_before_they_expire(server: KeyServer, aws: Path) -> None:
    """Keys with less than 5 minutes are asked for again; a failure to renew them is temporary."""
    count = write_process(aws, minutes=4)
    assert read() == BODY
    used = {key for _, key, _ in server.seen}
    time.sleep(0.15)  # obstore asks at most every 100 ms
    assert read() == BODY
    assert server.seen[-1][1] not in used
    count.write_text("-1")
    time.sleep(0.15)
    with pytest.raises(LoaderError, match=r"E-READ.*could not be renewed.*no keys today"):
        read()


def test_keys_that_the_storage_calls_expired_are_renewed_once(server: KeyServer, aws: Path) -> None:
    count = write_process(aws, minutes=60)
    assert read() == BODY
    assert {key for _, key, _ in server.seen} == {"key0"}
    server.keys = {"key1"}
    assert read() == BODY
    server.keys = {"none"}
    with pytest.raises(LoaderError, match=r"E-ACCESS.*ExpiredToken\); keys from boto3: custom-process"):
        read()
    assert count.read_text() == "2"


def test_another_process_finds_the_keys_itself(server: KeyServer, aws: Path, commands: Commands) -> None:
    (aws / "credentials").write_text(f"[default]\n{keys('one')}")
    read()
    store, program = aws / "store", aws / "read.py"
    store.write_bytes(pickle.dumps(ObjectStore()))
    assert b"one" not in store.read_bytes()
    program.write_text(
        "import os, pickle, sys\n"
        f"os.environ.update(HOME={str(aws.parent)!r}, AWS_ENDPOINT_URL={server.url!r})\n"
        "with open(sys.argv[1], 'rb') as file:\n"
        f"    pickle.load(file).read({URL!r}, 0, 3)\n"
    )
    code, command = commands.run(str(store), script=program)
    assert (code, command.errors) == (0, "")
    assert {key for _, key, _ in server.seen} == {"one"}
    assert len(server.seen) == 3


# ---- regions ----


@pytest.mark.parametrize(
    "refusal",
    [
        (400, "AuthorizationHeaderMalformed", "<Region>ap-south-1</Region>"),
        (400, "AuthorizationHeaderMalformed", ""),
        (301, "PermanentRedirect", ""),
        (400, "IllegalLocationConstraintException", ""),
    ],
)
def test_the_region_of_a_bucket_is_followed_once(
    server: KeyServer, monkeypatch: pytest.MonkeyPatch, refusal: tuple[int, str, str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "own")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "own")
    server.region, server.refusal = "ap-south-1", refusal
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: read(), range(8))) == [BODY] * 8
    assert len(ObjectStore().list("s3://bucket/")) == 1
    refused = sum(region != "ap-south-1" for _, _, region in server.seen)
    read()
    assert sum(region != "ap-south-1" for _, _, region in server.seen) == refused
    plain, _ = clients.client_of(URL).plain_request(URL) or ("", {})
    assert "%2Fap-south-1%2Fs3" in plain


def test_a_region_that_cannot_be_followed_is_named(server: KeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "own")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "own")
    server.region, server.refusal = "nowhere-1", (400, "AuthorizationHeaderMalformed", "<Region>elsewhere-1</Region>")
    with pytest.raises(LoaderError, match=r"another region, elsewhere-1 \(AuthorizationHeaderMalformed\)"):
        read()
