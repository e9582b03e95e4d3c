"""An HTTPS server on this machine, with a certificate of an authority that no one knows."""

from __future__ import annotations

import contextlib
import http.server
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

BODY = b"content"


class Authority(NamedTuple):
    """An authority that signs certificates.

    Attributes:
        path: file with its own certificate.
        sign: (file name, name of the host, days from now of the begin and the end) -> file of a key and a certificate.
    """

    path: Path
    sign: Callable[[str, str, tuple[int, int]], Path]


def make_authority(folder: Path) -> Authority:
    """Make an authority with its files in `folder`."""
    own_name, own_key = _name("authority"), ec.generate_private_key(ec.SECP256R1())

    def certify(
        name: str, key: ec.EllipticCurvePrivateKey, days: tuple[int, int], extension: x509.ExtensionType
    ) -> bytes:
        now = datetime.now(timezone.utc)
        certificate = (
            x509.CertificateBuilder(own_name, _name(name), key.public_key(), x509.random_serial_number())
            .not_valid_before(now + timedelta(days=days[0]))
            .not_valid_after(now + timedelta(days=days[1]))
            .add_extension(extension, critical=True)
        )
        return certificate.sign(own_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def sign(file: str, host: str, days: tuple[int, int]) -> Path:
        key = ec.generate_private_key(ec.SECP256R1())
        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        names = x509.SubjectAlternativeName([x509.DNSName(host)])
        path = folder / file
        path.write_bytes(key.private_bytes(*form) + certify(host, key, days, names))
        return path

    path = folder / "authority.pem"
    path.write_bytes(certify("authority", own_key, (-9, 9), x509.BasicConstraints(ca=True, path_length=None)))
    return Authority(path, sign)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        first, last = 0, len(BODY) - 1
        wanted = self.headers.get("Range")
        if wanted:
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        body = BODY[first : last + 1]
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{first + len(body) - 1}/{len(BODY)}")
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that do not trust the server."""


@contextlib.contextmanager
def serve_tls(certificate: Path) -> Iterator[str]:
    """Serve BODY at every address of the yielded URL, with a key and a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = _Server(("127.0.0.1", 0), _Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"https://localhost:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
