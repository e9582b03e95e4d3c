"""nginx on this machine: a child process that serves a folder over HTTP."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
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
    keepalive_requests {requests};
    server {{
        listen 127.0.0.1:{port};
        root {root};
    }}
}}
"""


class Nginx:
    """nginx that serves `root` on a free port, which it keeps if it is started again.

    own: folder for nginx's files. requests: after so many requests, a connection ends.
    """

    def __init__(self, root: Path, own: Path, requests: int = 7) -> None:
        assert NGINX is not None, NO_NGINX
        for name in ("body", "proxy", "fastcgi", "uwsgi", "scgi"):
            (own / name).mkdir(parents=True, exist_ok=True)
        self._root, self._own, self._requests = root, own, requests
        self.port = 0
        for attempt in range(_ATTEMPTS):
            self.port = _find_port()
            if self.start():
                break
            assert attempt < _ATTEMPTS - 1, (own / "error.log").read_text()
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> bool:
        """Start it, and return whether it answers."""
        own = self._own
        user = "user root;" if os.geteuid() == 0 else ""  # root can read the folder of the test
        values = {"user": user, "own": own, "port": self.port, "root": self._root, "requests": self._requests}
        (own / "nginx.conf").write_text(_CONFIGURATION.format(**values))
        command = [str(NGINX), "-p", own, "-c", own / "nginx.conf", "-e", own / "error.log"]
        self.process = subprocess.Popen(command, start_new_session=True)
        return _wait_for(self.port, self.process)

    def stop(self) -> None:
        """End it in good order."""
        self.process.terminate()
        self.process.wait()

    def kill(self) -> None:
        """Kill it with all its connections."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def serve_by_nginx(root: Path, own: Path) -> Iterator[str]:
    """Serve `root` on a free port, and yield the URL. A connection ends after a few requests.

    own: folder for nginx's files.
    """
    server = Nginx(root, own)
    try:
        yield server.url
    finally:
        server.stop()


def _find_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> bool:
    while process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return process.poll() is None
        time.sleep(0.02)
    return False
