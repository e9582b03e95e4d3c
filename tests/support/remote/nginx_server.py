"""nginx on this machine: a child process of a test that serves a folder over HTTP."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

_UNPACKED = Path(__file__).resolve().parents[3] / "build/nginx/usr/sbin"  # by `make setup`
NGINX = shutil.which("nginx", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", str(_UNPACKED)]))
NO_NGINX = "nginx is not on this machine (`make setup` unpacks it where apt-get can download it)"
_ATTEMPTS = 5  # to find a port that no other process takes in the meantime

_CONFIGURATION = """
daemon off;
{user}
worker_processes 2;
pid {own}/pid;
error_log {own}/error.log;
events {{ worker_connections 512; }}
http {{
    access_log {own}/access.log;
    client_body_temp_path {own}/body;
    proxy_temp_path {own}/proxy;
    fastcgi_temp_path {own}/fastcgi;
    uwsgi_temp_path {own}/uwsgi;
    scgi_temp_path {own}/scgi;
    keepalive_requests 7;
    server {{
        listen 127.0.0.1:{port};
        root {root};
    }}
}}
"""


@contextlib.contextmanager
def serve_by_nginx(root: Path, own: Path) -> Iterator[str]:
    """Serve `root` on a free port, and yield the URL. A connection ends after a few requests.

    own: folder for nginx's files.
    """
    for name in ("body", "proxy", "fastcgi", "uwsgi", "scgi"):
        (own / name).mkdir(parents=True, exist_ok=True)
    assert NGINX is not None, NO_NGINX
    for attempt in range(_ATTEMPTS):
        port = _find_port()
        user = "user root;" if os.geteuid() == 0 else ""  # root can read the folder of the test
        text = _CONFIGURATION.format(user=user, own=own, port=port, root=root)
        (own / "nginx.conf").write_text(text)
        process = subprocess.Popen([NGINX, "-p", own, "-c", own / "nginx.conf", "-e", own / "error.log"])
        if _wait_for(port, process):
            break
        assert attempt < _ATTEMPTS - 1, (own / "error.log").read_text()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _find_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> bool:
    while process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return process.poll() is None
        time.sleep(0.02)
    return False
