"""Reads the keys and the region of a profile in the AWS files, which obstore does not read."""

from __future__ import annotations

import configparser
import os

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.checked import near_name, shown

_FILES = (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config"))
_KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
# Other origins of keys in a profile, which botocore supports.
_INDIRECT = ("role_arn", "credential_process", "sso_session", "sso_start_url", "credential_source")
_FROM_ENVIRONMENT = ("AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE", "AWS_WEB_IDENTITY_TOKEN_FILE")


def profile_paths() -> list[str]:
    """Return the paths of the AWS files."""
    return [os.path.expanduser(os.environ.get(name, default)) for name, default in _FILES]


def profile_settings() -> dict[str, object]:
    """Return the options of obstore's store for the profile AWS_PROFILE, or the default profile.

    These are keys, region, or a provider of keys; none that the environment already sets. Raises LoaderError E-ACCESS
    for a profile that is in neither file, for a file that cannot be parsed, and for keys that need boto3 without it.
    """
    name = os.environ.get("AWS_PROFILE", "")
    credentials, config = map(_read, profile_paths())
    own = config.get(f"profile {name}", {}) if name and name != "default" else config.get("default", {})
    found = {**own, **credentials.get(name or "default", {})}
    if name and name != "default" and f"profile {name}" not in config and name not in credentials:
        known = sorted({*credentials, *(each.removeprefix("profile ") for each in config)})
        cause = f"AWS_PROFILE is {shown(name)}, but the AWS files have the profiles {', '.join(known) or 'none'}"
        raise LoaderError("E-ACCESS", f"{cause}{near_name(name, known)}", fix="correct AWS_PROFILE, or leave it out")
    settings: dict[str, object] = {}
    if "region" in found and not (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")):
        settings["region"] = found["region"]
    if any(os.environ.get(variable) for variable in _FROM_ENVIRONMENT):
        return settings
    if "aws_access_key_id" in found:
        return settings | {option: found[key] for key, option in _KEYS.items() if key in found}
    if any(key in found for key in _INDIRECT):
        settings["credential_provider"] = _follow(name or "default")
    return settings


def _read(path: str) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise LoaderError("E-ACCESS", f"not a file of AWS profiles: {type(error).__name__}", path=path) from None
    return {section: dict(parser[section]) for section in parser.sections()}


def _follow(name: str) -> object:
    """Return a provider of keys for a profile that gets them from a role, a command, or a sign-on."""
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        cause = f"the keys of the profile {shown(name)} come from a role, a command or a sign-on, which needs boto3"
        raise LoaderError("E-ACCESS", cause, fix="pip install boto3, or set AWS_ACCESS_KEY_ID and its secret") from None
    return Boto3CredentialProvider(boto3.Session(profile_name=name))
