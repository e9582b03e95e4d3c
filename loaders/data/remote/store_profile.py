"""Finds keys, regions and endpoints of storages as their own tools do: for S3 by boto3's chain, where installed."""

from __future__ import annotations

import configparser
import os
import re
from datetime import datetime, timezone
from typing import Any, NamedTuple

from penstock.loaders.system.retries import can_heal
from penstock.pipelines.errors import LoaderError, one_line
from penstock.pipelines.messages.checked import near_name, shown

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
TRUE = ("1", "true", "on", "yes", "y")  # as obstore reads them
NO_KEYS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; AWS_SKIP_SIGNATURE=true for a public bucket"
_FILES = (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config"))
_KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
# Other origins of keys in a profile, which botocore supports.
_INDIRECT = ("role_arn", "credential_process", "sso_session", "sso_start_url", "credential_source", "login_session")
_SERVICE_ENDPOINT = re.compile(r"^\s*endpoint_url\s*=\s*(\S+)", re.MULTILINE)
_CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"
_IMDS_ATTEMPTS = 3  # many processes of a machine ask at once; botocore's default is 1


class S3Settings(NamedTuple):
    """Settings of a client of S3.

    Attributes:
        options: options of obstore's store, besides those that it reads from the environment.
        origin: where the keys come from, in words.
    """

    options: dict[str, Any]
    origin: str


def profile_paths() -> list[str]:
    """Return the paths of the AWS files."""
    return [os.path.expanduser(os.environ.get(name, default)) for name, default in _FILES]


def profile_settings() -> S3Settings:
    """Return the settings for the profile AWS_PROFILE, or the default profile; the environment goes before it.

    Raises LoaderError E-ACCESS for a profile that is in neither file, for a file that cannot be parsed, for keys that
    need boto3 without it, and if boto3's chain finds no keys.
    """
    name = os.environ.get("AWS_PROFILE") or "default"
    credentials, config = map(_read, profile_paths())
    section = f"profile {name}" if name != "default" else name
    found = {**config.get(section, {}), **credentials.get(name, {})}
    if name != "default" and section not in config and name not in credentials:
        known = sorted({*credentials, *(each.removeprefix("profile ") for each in config)})
        cause = f"AWS_PROFILE is {shown(name)}, but the AWS files have the profiles {', '.join(known) or 'none'}"
        raise LoaderError("E-ACCESS", f"{cause}{near_name(name, known)}", fix="correct AWS_PROFILE, or leave it out")
    options: dict[str, Any] = {}
    if "region" in found and not (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")):
        options["region"] = found["region"]
    service = _SERVICE_ENDPOINT.search(config.get(f"services {found.get('services')}", {}).get("s3", ""))
    endpoint = service[1] if service is not None else found.get("endpoint_url")
    if endpoint and not any(map(os.environ.get, (*ENDPOINTS, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"))):
        options["endpoint"] = endpoint
    if os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in TRUE:
        return S3Settings(options, "no keys, because AWS_SKIP_SIGNATURE is set")
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return S3Settings(options, "keys from the environment")
    keys, origin = _ask_boto3(name) or _ask_files(name, found)
    return S3Settings(options | keys, origin)


def _ask_boto3(profile: str) -> tuple[dict[str, Any], str] | None:
    """Return the keys that boto3's chain finds, and their origin; None without boto3."""
    try:
        import boto3
        import botocore.session
    except ImportError:
        return None
    session = botocore.session.Session()
    if not os.environ.get("AWS_METADATA_SERVICE_NUM_ATTEMPTS"):
        session.set_config_variable("metadata_service_num_attempts", _IMDS_ATTEMPTS)
    try:
        credentials = boto3.Session(botocore_session=session).get_credentials()
        provider = None if credentials is None else KeyProvider(credentials)
        if provider is not None:
            provider()
    except Exception as error:
        code = "E-READ" if can_heal(error) else "E-ACCESS"
        cause = f"boto3's chain failed for the profile {shown(profile)}: {type(error).__name__}: {one_line(str(error))}"
        raise LoaderError(code, cause, fix="correct the profile, or sign on again") from error
    if provider is None:
        files = ", ".join(f"{path}{'' if os.path.exists(path) else ' (absent)'}" for path in profile_paths())
        cause = (
            f"no keys for S3: boto3's chain found none in the environment, in the profile {shown(profile)} of {files}"
        )
        raise LoaderError("E-ACCESS", f"{cause}, in a container (ECS) and at the instance (IMDS)", fix=NO_KEYS)
    return {"credential_provider": provider}, f"keys from boto3: {credentials.method}, profile {shown(profile)}"


def _ask_files(profile: str, found: dict[str, str]) -> tuple[dict[str, Any], str]:
    """Return the keys in a profile, or none, so that obstore asks for a role, and the origin."""
    if os.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return {}, "keys from AWS_WEB_IDENTITY_TOKEN_FILE"
    if "aws_access_key_id" in found:
        keys = {option: found[key] for key, option in _KEYS.items() if key in found}
        return keys, f"keys from the profile {shown(profile)}"
    if any(key in found for key in _INDIRECT):
        cause = f"the keys of the profile {shown(profile)} come from a role, a command or a sign-on, which needs boto3"
        raise LoaderError("E-ACCESS", cause, fix="pip install boto3, or set AWS_ACCESS_KEY_ID and its secret")
    return {}, "keys from a role, because the environment and the AWS files have none"


class KeyProvider:
    """Gives obstore the current keys of a chain; botocore renews them before they expire."""

    config: dict[str, Any] = {}  # noqa: RUF012  read by obstore

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials

    @property
    def expires_at(self) -> datetime | None:
        """When the keys expire; None if they do not."""
        expires_at: datetime | None = getattr(self._credentials, "_expiry_time", None)
        return None if expires_at is None else expires_at.astimezone(timezone.utc)  # obstore takes no other zone

    def __call__(self) -> dict[str, Any]:
        """Return the keys, and when they expire: until shortly before, obstore does not ask again."""
        keys = self._credentials.get_frozen_credentials()
        found = {"access_key_id": keys.access_key, "secret_access_key": keys.secret_key, "token": keys.token}
        return {**found, "expires_at": self.expires_at}


def azure_settings() -> dict[str, Any]:
    """Return obstore's options for AZURE_STORAGE_CONNECTION_STRING. Raises LoaderError E-ACCESS if it is malformed."""
    text = os.environ.get(_CONNECTION, "").strip()
    if not text:
        return {}
    # Keys and signatures contain "=".
    parts = dict(part.partition("=")[::2] for part in text.split(";") if part.strip())
    known = {name.strip().lower(): value.strip() for name, value in parts.items()}
    if known.get("usedevelopmentstorage", "").lower() == "true":
        return {"use_emulator": True}
    account, endpoint = known.get("accountname", ""), known.get("blobendpoint", "").rstrip("/")
    if not account and not endpoint:
        cause = f"{_CONNECTION} has neither AccountName nor BlobEndpoint"
        raise LoaderError("E-ACCESS", cause, fix="copy it from the storage account's page of access keys")
    if not endpoint:
        protocol, suffix = known.get("defaultendpointsprotocol", "https"), known.get("endpointsuffix")
        endpoint = f"{protocol}://{account}.blob.{suffix or 'core.windows.net'}"
    # The account of "https://me.blob.core.windows.net", and of an emulator, "http://127.0.0.1:10000/me".
    host, _, path = endpoint.partition("://")[2].partition("/")
    options: dict[str, Any] = {"account_name": account or path or host.partition(".")[0], "endpoint": endpoint}
    for name, option in (("accountkey", "account_key"), ("sharedaccesssignature", "sas_key")):
        if known.get(name):
            options[option] = known[name].removeprefix("?")
    return options


def gcs_settings() -> dict[str, Any]:
    """Return obstore's options for an emulator at STORAGE_EMULATOR_HOST, which needs no credentials."""
    host = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    return {"base_url": host if "://" in host else f"http://{host}", "skip_signature": True} if host else {}


def _read(path: str) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise LoaderError("E-ACCESS", f"not a file of AWS profiles: {type(error).__name__}", path=path) from None
    return {section: dict(parser[section]) for section in parser.sections()}
