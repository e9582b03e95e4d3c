"""Checks, run inside the image, that it is confined as in test-image.sh and has exactly the expected contents."""

import importlib.metadata
import importlib.util
import os
import shutil
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path


def findings() -> Iterator[str]:
    """Yield one line for each difference from the expected state."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    expected = {"NoNewPrivs": "1", "Seccomp": "2", **dict.fromkeys(("CapBnd", "CapEff", "CapPrm"), "0" * 16)}
    yield from (f"{key} is {status[key]}" for key, value in expected.items() if status[key].strip() != value)
    if (os.getpid(), os.getuid()) != (1, int(os.environ["EXPECTED_UID"])):
        yield f"process {os.getpid()} of user {os.getuid()}"
    if [name for _, name in socket.if_nameindex()] != ["lo"]:
        yield f"network interfaces {socket.if_nameindex()}"
    for folder in ("/", "/opt/penstock", "/workspace", "/var/lib", "/dev/shm"):  # noqa: S108
        try:
            probe = Path(folder, ".probe")
            probe.touch()
            probe.unlink()
            writable = True
        except OSError:
            writable = False
        if writable != (folder == "/dev/shm"):  # noqa: S108
            yield f"{folder} is {'' if writable else 'not '}writable"
    yield from (f"{tool} is present" for tool in ("gcc", "cc", "g++", "make", "sudo", "pip") if shutil.which(tool))
    yield from (f"{tool} is missing" for tool in ("penstock", "torchrun") if not shutil.which(tool))
    for folder, _, names in os.walk("/usr"):
        yield from (f"{folder}/{n} is setuid" for n in names if os.lstat(f"{folder}/{n}").st_mode & stat.S_ISUID)
    yield from _package_findings()


def _package_findings() -> Iterator[str]:
    from PIL import Image, features

    installed = {distribution.name.lower() for distribution in importlib.metadata.distributions()}
    if "pillow" in installed or "pillow-simd" not in installed or "post" not in Image.__dict__["__version__"]:
        yield "PIL is not Pillow-SIMD's"
    yield from (f"PIL cannot do {name}" for name in ("jpg", "zlib", "webp") if not features.check(name))
    modules = ("h5py", "isal", "simplejpeg", "turbojpeg")
    yield from (f"no {name}" for name in modules if not importlib.util.find_spec(name))
    import torch

    if torch.version.cuda is not None:
        yield f"torch is built for CUDA {torch.version.cuda}"


if __name__ == "__main__":
    found = list(findings())
    print(*found, sep="\n")
    sys.exit(bool(found))
