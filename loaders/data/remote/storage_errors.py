"""Converts errors of a storage or its client to LoaderErrors that name the cause."""

from __future__ import annotations

import http.client
import os
import re
from urllib.parse import urlsplit

from penstock.loaders.system.retries import HEALING_STATUS, find_status
from penstock.pipelines.errors import LoaderError, hide_secrets

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGION_TIMEOUT_S = 5.0
_RIGHTS = "check the storage's credentials (environment, configuration file or role) and their read permissions"
_FAILED = "check the network and the storage; the request failed after retries"
_NO_RANGES = "the server returns the whole object instead of the requested range"
_NO_CREDENTIALS = "no credentials were found; set them, or AWS_SKIP_SIGNATURE=true for a public bucket"
_CODES = {
    "FileNotFoundError": (
        "E-MISSING",
        "no such object, or no such bucket",
        "check the URL; if the data was moved, open it at its new URL",
    ),
    "PermissionDeniedError": ("E-ACCESS", "the credentials do not allow it", _RIGHTS),
    "UnauthenticatedError": ("E-ACCESS", "the credentials are missing or have expired", _RIGHTS),
    "PermissionError": ("E-ACCESS", "the credentials do not allow it", _RIGHTS),
    "PreconditionError": ("E-CHANGED", "the object was replaced since it was indexed", None),
    "416": ("E-CHANGED", "the object has fewer bytes than indexed", None),
    "NotSupportedError": ("E-READ", _NO_RANGES, "serve it with support for Range requests, or download it"),
}
_TOKEN = ("E-ACCESS", "the storage refuses the credentials' token, which has expired or is wrong", _RIGHTS)
_REGION = "set AWS_REGION to the region of the bucket"
# S3's own codes.
_S3_CODES = {
    "ExpiredToken": _TOKEN,
    "InvalidToken": _TOKEN,
    "TokenRefreshRequired": _TOKEN,
    "RequestTimeTooSkewed": ("E-ACCESS", "this machine's clock differs too much from the storage's", "set the clock"),
    "SignatureDoesNotMatch": (
        "E-ACCESS",
        "the signature is wrong: the secret key does not match the access key",
        _RIGHTS,
    ),
    "InvalidAccessKeyId": ("E-ACCESS", "the storage does not know the access key", _RIGHTS),
    "AccessDenied": ("E-ACCESS", "the credentials do not allow it", _RIGHTS),
    "NoSuchBucket": ("E-MISSING", "no such bucket", "check the URL and the endpoint"),
    "AuthorizationHeaderMalformed": ("E-ACCESS", "the bucket is in another region", _REGION),
    "PermanentRedirect": ("E-ACCESS", "the bucket is in another region", _REGION),
    "IllegalLocationConstraintException": ("E-ACCESS", "the bucket is in another region", _REGION),
}
# Texts of network errors, as written by obstore -> their meaning.
_NETWORK = (
    ("dns error", "the name of the host cannot be resolved (DNS)"),
    ("failed to lookup address", "the name of the host cannot be resolved (DNS)"),
    ("Connection refused", "the connection was refused: nothing listens at this host and port"),
    ("UnknownIssuer", "the server's certificate is not trusted (UnknownIssuer)"),
    ("invalid peer certificate", "the server's certificate is not valid"),
    ("certificate", "the server's certificate is not valid"),
    ("Connection reset", "the server closed the connection"),
    ("operation timed out", "no answer came in time"),
    ("Network is unreachable", "the network is unreachable"),
)
_STATUS = re.compile(r"\bstatus(?: code:)? (\d{3})\b")  # as written by obstore
_CODE = re.compile(r"<Code>(\w+)</Code>")
_NAMED_REGION = re.compile(r"<Region>([\w-]+)</Region>")
_ODD_KEY = re.compile(r'[Pp]ath "([^"]*)"')
_OF_STATUS = {401: "UnauthenticatedError", 403: "PermissionError", 404: "FileNotFoundError", 416: "416"}


def as_loader_error(error: Exception, url: str) -> LoaderError:
    """Return the LoaderError for a client's error in a request for `url`."""
    text = hide_secrets(str(error))
    known = _CODES.get(type(error).__name__) or _CODES.get(_OF_STATUS.get(_status_of(error, text), ""))
    code, cause, fix = _odd_key(text) or _s3_refusal(text, url) or known or _failure(error, text)
    return LoaderError(code, cause, fix=fix, path=url.encode())


def is_busy(error: Exception) -> bool:
    """Return whether a server answered that it is temporarily unavailable."""
    return _status_of(error, str(error)) in HEALING_STATUS


def refuses_head(error: Exception) -> bool:
    """Return whether a server may refuse only HEAD requests, as for a URL signed for reading."""
    return _status_of(error, str(error)) in (400, 403, 405, 501) or type(error).__name__ == "PermissionDeniedError"


def _status_of(error: Exception, text: str) -> int:
    found = _STATUS.search(text)
    return find_status(error) or (int(found[1]) if found is not None else 0)


def _odd_key(text: str) -> tuple[str, str, str | None] | None:
    found = _ODD_KEY.search(text)
    if found is None or "path segment" not in text:
        return None
    is_control = not found[1].isprintable()
    what = '"//"' if "//" in found[1] else "a control character" if is_control else '"/./" or "/../"'
    cause = f"the key {found[1]!r} contains {what}, which is not supported"
    return "E-UNSUPPORTED", cause, "rename the object, or open a folder or a pattern without it"


def _s3_refusal(text: str, url: str) -> tuple[str, str, str | None] | None:
    if not url.startswith("s3"):
        return None
    found, status = _CODE.search(text), _STATUS.search(text)
    name = found[1] if found is not None else "PermanentRedirect" if "redirect without LOCATION" in text else ""
    if name not in _S3_CODES:
        # An answer to HEAD has no text.
        return _TOKEN if found is None and status is not None and status[1] == "400" else None
    code, cause, fix = _S3_CODES[name]
    if fix is _REGION:
        named = _NAMED_REGION.search(text)
        region = named[1] if named is not None else _ask_region(url)
        if region:
            return code, f"{cause}, {region} ({name})", f"set AWS_REGION={region}"
    return code, f"{cause} ({name})", fix


def _ask_region(url: str) -> str:
    """Return the region that S3 reports for the bucket of a URL, without credentials; "" if it reports none."""
    bucket = urlsplit(url).netloc
    endpoint = next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), "https://s3.amazonaws.com")
    scheme, host, path, *_ = urlsplit(endpoint)
    connect = http.client.HTTPConnection if scheme == "http" else http.client.HTTPSConnection
    try:
        connection = connect(host, timeout=_REGION_TIMEOUT_S)
        connection.request("HEAD", f"{path.rstrip('/')}/{bucket}")
        return connection.getresponse().getheader("x-amz-bucket-region") or ""
    except (OSError, http.client.HTTPException):
        return ""


def _failure(error: Exception, text: str) -> tuple[str, str, str | None]:
    line = text.splitlines()[0][:200] if text else ""
    meaning = next((meaning for words, meaning in _NETWORK if words in text), None)
    fix = _NO_CREDENTIALS if "/169.254.169.254/" in text else _FAILED
    return "E-READ", f"{f'{meaning}: ' if meaning else ''}{type(error).__name__}: {line}", fix
