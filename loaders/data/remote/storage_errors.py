"""Converts errors of a storage or its client to LoaderErrors that name the cause."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import ssl
from urllib.parse import urlsplit

from penstock.loaders.data.remote.certificates import ca_bundle, read_certificates
from penstock.loaders.data.remote.store_profile import ENDPOINTS, NO_KEYS
from penstock.loaders.system.retries import HEALING_STATUS, can_heal, find_status
from penstock.pipelines.errors import LoaderError, hide_secrets, one_line

Words = tuple[str, str, str | None]  # code, cause, fix

_REGION_TIMEOUT_S = 5.0
_RIGHTS = "check the storage's credentials (environment, configuration file or role) and their read permissions"
_FAILED = "check the network and the storage; the request failed after retries"
_NO_RANGES = "the server returns the whole object instead of the requested range"
_CODES: dict[str, Words] = {
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
_CLOCK = "set the clock"
_TOKEN = ("E-ACCESS", "the storage refuses the credentials' token, which has expired or is wrong", _RIGHTS)
_SKEW = ("E-ACCESS", "this machine's clock differs too much from the storage's", _CLOCK)
_KEY = ("E-ACCESS", "the signature is wrong: the secret key does not match the access key", _RIGHTS)
_REGION = ("E-ACCESS", "the bucket is in another region", "set AWS_REGION to the region of the bucket")
_BUCKET = ("E-MISSING", "no such bucket", "check the URL and the endpoint")
_COLD = ("E-ACCESS", "the object is archived", "restore it from the archive, or copy it to another storage class")
# Codes in the answers of S3, GCS and Azure.
_SERVER_CODES: dict[str, Words] = {
    "ExpiredToken": _TOKEN,
    "InvalidToken": _TOKEN,
    "TokenRefreshRequired": _TOKEN,
    "RequestTimeTooSkewed": _SKEW,
    "RequestExpired": _SKEW,
    "SignatureDoesNotMatch": _KEY,
    "InvalidAccessKeyId": ("E-ACCESS", "the storage does not know the access key", _RIGHTS),
    "NoSuchBucket": _BUCKET,
    "ContainerNotFound": _BUCKET,
    "AuthorizationHeaderMalformed": _REGION,
    "PermanentRedirect": _REGION,
    "TemporaryRedirect": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "InvalidObjectState": _COLD,
    "BlobArchived": _COLD,
}
_EXPIRED, _OTHER_REGION = (
    ("ExpiredToken", "TokenRefreshRequired"),
    [n for n, w in _SERVER_CODES.items() if w is _REGION],
)
_TRUST = "set SSL_CERT_FILE (also AWS_CA_BUNDLE or REQUESTS_CA_BUNDLE) to a file with the certificate of its authority"
_VALID = "check the server's certificate, and this machine's clock"
_HOST = "check the host in the URL, or the endpoint"
# Texts of network errors, as written by obstore -> (cause, what to do). These cannot heal.
_LASTING = {
    "UnknownIssuer": ("the server's certificate is of an authority that is not trusted (UnknownIssuer)", _TRUST),
    "CaUsedAsEndEntity": ("the server's certificate is self-signed and not trusted (CaUsedAsEndEntity)", _TRUST),
    "NotValidForName": ("the server's certificate is of another host (NotValidForName)", _HOST),
    "NotValidYet": ("the server's certificate is not valid yet (NotValidYet)", _VALID),
    "certificate expired": ("the server's certificate has expired", _VALID),
    "Expired": ("the server's certificate has expired", _VALID),
    "invalid peer certificate": ("the server's certificate is not valid", _VALID),
    "InvalidContentType": ("the server does not use TLS at this port", "use http:// in the URL or the endpoint"),
}
_HEALING = {
    "Connection refused": "the connection was refused: nothing listens at this host and port",
    "Connection reset": "the server closed the connection",
    "operation timed out": "no answer came in time",
    "Network is unreachable": "the network is unreachable",
    "No route to host": "the host cannot be reached",
}
_DNS = ("dns error", "failed to lookup address", "Name or service not known", "nodename nor servname")
_DNS_LASTING = ("Name or service not known", "No address associated", "nodename nor servname")
_INSTANCE = ("/169.254.169.254", "/fd00:ec2::254", "/metadata.google.internal")
_STATUS = re.compile(r"\bstatus(?: code:)? (\d{3})\b")  # as written by obstore
_TRANSPORT = re.compile(r"HttpError \{\s*kind: (?:Connect|Timeout|Interrupted|Request|Unknown)")  # by obstore
_TIMEOUT = re.compile(r"kind: Timeout|TimedOut|operation timed out|^\w*Timeout")
_CERTIFICATE = re.compile(r"invalid peer certificate|UnknownIssuer|certificate verify failed", re.IGNORECASE)
_UNREACHABLE = re.compile(
    r"dns error|failed to lookup address|ConnectionRefused|Connection refused|Cannot connect to host|"
    r"Name or service not known|nodename nor servname|Temporary failure in name resolution"
)
_CODE = re.compile(r"<Code>([\w.]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]+)</Message>")
_NAMED_REGION = re.compile(r"<Region>([\w-]+)</Region>")
_RENEWAL = re.compile(r"External AWS credential provider: ([^\n]*)")
_ODD_KEY = re.compile(r'[Pp]ath "([^"]*)"')
_OF_STATUS = {401: "UnauthenticatedError", 403: "PermissionError", 404: "FileNotFoundError", 416: "416"}


def as_loader_error(error: Exception, url: str, *, is_known: bool = False) -> LoaderError:
    """Return the LoaderError for a client's error in a request for `url`.

    A client may have set `error.origin`, where its keys come from, and `error.is_first`, whether no request has
    succeeded before. is_known: whether the host must exist, because data on it is indexed.
    """
    text = hide_secrets(str(error))
    known = _CODES.get(type(error).__name__) or _CODES.get(_OF_STATUS.get(_status_of(error, text), ""))
    is_first = getattr(error, "is_first", False)
    refused = _odd_key(text) or _renewal(text) or _refusal(error, text, url, known)
    code, cause, fix = refused or _failure(error, text, is_first, is_known)
    origin = getattr(error, "origin", "") if code == "E-ACCESS" else ""
    return LoaderError(code, f"{cause}; {origin}" if origin else cause, fix=fix, path=url.encode())


def is_temporary(error: Exception) -> bool:
    """Return whether a server is temporarily unavailable, or the network failed on the way to it."""
    text = str(error)
    status = _status_of(error, text)
    if status:
        return status in HEALING_STATUS
    return not is_lasting(error) and (can_heal(error) or _TRANSPORT.search(text) is not None)


def is_lasting(error: Exception) -> bool:
    """Return whether a server cannot be trusted: its certificate does not become valid by waiting."""
    return _CERTIFICATE.search(str(error)) is not None


def is_unreachable(error: Exception) -> bool:
    """Return whether a host is unknown or refuses connections, or no service gives this machine credentials."""
    text = str(error)
    return _UNREACHABLE.search(text) is not None or any(place in text for place in _INSTANCE)


def asks_for_patience(error: Exception) -> bool:
    """Return whether a server answered that it has too many requests."""
    return _status_of(error, str(error)) in (429, 503)


def is_slow_down(error: Exception) -> bool:
    """Return whether fewer requests may help: the server has too many, or did not answer in time."""
    return asks_for_patience(error) or _TIMEOUT.search(f"{type(error).__name__} {error}") is not None


def refuses_head(error: Exception) -> bool:
    """Return whether a server may refuse only HEAD requests, or answer them without a size."""
    text = str(error)
    is_refused = _status_of(error, text) in (400, 403, 405, 501) or type(error).__name__ == "PermissionDeniedError"
    return is_refused or "ontent-Length" in text or "ContentLength" in text


def is_beyond_end(error: Exception) -> bool:
    """Return whether a requested range begins after the end of the object."""
    return _status_of(error, str(error)) == 416


def s3_problem(error: Exception) -> str:
    """Return what a client of S3 may correct after an error: the "region", expired "keys", or ""."""
    name = _server_code(str(error))
    return "region" if name in _OTHER_REGION else "keys" if name in _EXPIRED else ""


def named_region(error: Exception) -> str:
    """Return the region of a bucket that is named in an error; "" if none is."""
    named = _NAMED_REGION.search(str(error))
    return "" if named is None else named[1]


def ask_region(url: str, endpoint: str | None = None) -> str:
    """Return the region that S3 reports for the bucket of a URL, without credentials; "" if it reports none."""
    endpoint = next(filter(None, (*map(os.environ.get, ENDPOINTS), endpoint)), "https://s3.amazonaws.com")
    scheme, host, path, *_ = urlsplit(endpoint)
    try:
        if scheme == "http":
            connection = http.client.HTTPConnection(host, timeout=_REGION_TIMEOUT_S)
        else:
            bundle = ca_bundle("s3")
            context = ssl.create_default_context()
            if bundle is not None:
                context.load_verify_locations(cadata=read_certificates(bundle).decode("ascii", "ignore"))
            connection = http.client.HTTPSConnection(host, timeout=_REGION_TIMEOUT_S, context=context)
        with contextlib.closing(connection):
            connection.request("HEAD", f"{path.rstrip('/')}/{urlsplit(url).netloc}")
            return connection.getresponse().getheader("x-amz-bucket-region") or ""
    except (OSError, http.client.HTTPException):
        return ""


def _status_of(error: Exception, text: str) -> int:
    found = _STATUS.search(text)
    return find_status(error) or (int(found[1]) if found is not None else 0)


def _odd_key(text: str) -> Words | None:
    found = _ODD_KEY.search(text)
    if found is None or "path segment" not in text:
        return None
    is_control = not found[1].isprintable()
    what = '"//"' if "//" in found[1] else "a control character" if is_control else '"/./" or "/../"'
    cause = f"the key {found[1]!r} contains {what}, which is not supported"
    return "E-UNSUPPORTED", cause, "rename the object, or open a folder or a pattern without it"


def _renewal(text: str) -> Words | None:
    """Return the words for keys that could not be renewed, which is tried again: they had been found before."""
    found = _RENEWAL.search(text)
    return None if found is None else ("E-READ", f"the keys could not be renewed: {found[1][:300]}", _RIGHTS)


def _server_code(text: str) -> str:
    found = _CODE.search(text)
    return found[1] if found is not None else "PermanentRedirect" if "redirect without LOCATION" in text else ""


def _refusal(error: Exception, text: str, url: str, known: Words | None) -> Words | None:
    """Return the words for a server's refusal, with its own code, or `known`, those for the kind of the error."""
    name, status = _server_code(text), _STATUS.search(text)
    words = _SERVER_CODES.get(name) or known
    if words is None:
        # An answer of S3 to HEAD has no text.
        is_token = not name and status is not None and status[1] == "400" and url.startswith("s3")
        return _TOKEN if is_token else None
    message = _MESSAGE.search(text)
    said = "" if words is not known or message is None else f": {one_line(message[1])[:200]}"
    region = named_region(error) if words is _REGION else ""
    cause = f"{words[1]}{f', {region}' if region else ''}{f' ({name}{said})' if name else ''}"
    return words[0], cause, f"set AWS_REGION={region}" if region else words[2]


def _failure(error: Exception, text: str, is_first: bool, is_known: bool) -> Words:
    line = f"{type(error).__name__}: {text.splitlines()[0][:200] if text else ''}"
    if any(place in text for place in _INSTANCE):
        cause = f"no credentials were found: this machine's own service gave none: {line}"
        return "E-ACCESS" if is_first else "E-READ", cause, NO_KEYS
    if any(words in text for words in _DNS):
        is_lasting = is_first and not is_known and any(words in text for words in _DNS_LASTING)
        cause = f"the name of the host cannot be resolved (DNS): {line}"
        return "E-ACCESS" if is_lasting else "E-READ", cause, _HOST
    for words, (meaning, fix) in _LASTING.items():
        if words in text and not _STATUS.search(text):
            return "E-ACCESS", f"{meaning}: {line}", fix
    meaning = next((meaning for words, meaning in _HEALING.items() if words in text), "")
    name, message = _server_code(text), _MESSAGE.search(text)
    said = "" if not name else f" ({name}{'' if message is None else f': {one_line(message[1])[:200]}'})"
    return "E-READ", f"{f'{meaning}: ' if meaning else ''}{line}{said}", _FAILED
