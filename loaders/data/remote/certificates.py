"""Finds the certificates that the environment says to trust besides the system's."""

from __future__ import annotations

import contextlib
import os
import ssl

from penstock.pipelines.errors import LoaderError

# The first that is set counts: of boto3, of requests, and of OpenSSL, in the order of boto3.
VARIABLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
# Where systems store the certificates that they trust, in one file.
_SYSTEM_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_BEGIN = b"-----BEGIN CERTIFICATE-----"


def ca_bundle(scheme: str) -> str | None:
    """Return the path of a file or folder of certificates for the protocol `scheme`; None for the system's alone.

    Raises LoaderError E-ACCESS if it does not exist.
    """
    names = VARIABLES if scheme in ("s3", "s3a") else VARIABLES[1:]
    name = next((name for name in names if os.environ.get(name)), None)
    path = None if name is None else os.environ[name]
    if path is not None and not os.path.exists(path):
        cause = f"{name} names a file of certificates that does not exist: {path}"
        raise LoaderError("E-ACCESS", cause, fix=f"correct {name}, or unset it")
    return path


def trusted_place(scheme: str) -> str:
    """Return the path of a file or folder of trusted certificates, for clients that have none; "" if none is found."""
    found = ""
    with contextlib.suppress(LoaderError):  # raised by the client that reports it
        found = ca_bundle(scheme) or ""
    places = (found, ssl.get_default_verify_paths().cafile or "", *_SYSTEM_FILES)
    return next((place for place in places if place and os.path.exists(place)), "")


def read_certificates(path: str) -> bytes:
    """Return the certificates (PEM) in a file, or in all files of a folder. Raises LoaderError E-ACCESS without any."""
    try:
        names = sorted(os.scandir(path), key=lambda entry: entry.name) if os.path.isdir(path) else [path]
        found = [data for data in map(_read, map(os.fspath, names)) if _BEGIN in data]
    except OSError as error:
        raise LoaderError("E-ACCESS", f"cannot read certificates: {error.strerror}", path=path) from None
    if not found:
        raise LoaderError(
            "E-ACCESS",
            "no certificates in PEM format",
            fix=f"correct the one that is set of {', '.join(VARIABLES)}",
            path=path,
        )
    return b"\n".join(found)


def _read(path: str) -> bytes:
    if not os.path.isfile(path):
        return b""
    with open(path, "rb") as file:
        return file.read()
