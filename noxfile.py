"""Runs a fast part of the suite with the oldest and the newest declared versions, one environment per session.

`make test-matrix MATRIX='oldest simd'` runs these two, and all of them without MATRIX. A session is skipped if its
Python or its system library is missing on this machine; with `-- --if-installable`, also if its packages cannot be
installed within ten minutes.
"""

from __future__ import annotations

import ctypes.util
import os
import re
import shutil
from collections.abc import Sequence
from glob import glob
from pathlib import Path

import nox
from nox.command import CommandFailed

# Interpreters of pyenv and uv come first: pyenv's own python3.10 may only print that this version is not selected.
HOME = Path.home()
PYENV = os.environ.get("PYENV_ROOT", f"{HOME}/.pyenv")
UV = os.environ.get("UV_PYTHON_INSTALL_DIR", f"{HOME}/.local/share/uv/python")
FOLDERS = [*glob(f"{PYENV}/versions/3.*/bin"), *glob(f"{UV}/cpython-3.*/bin")]
os.environ["PATH"] = os.pathsep.join([*FOLDERS, os.environ["PATH"]])

nox.options.envdir = "build/matrix"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = False

TOOLS = ("pytest>=8", "pytest-timeout>=2.3")
EXTRAS = ("pillow", "hdf5", "prometheus")  # for decoders, cache and exporters
SELECTION = (  # decoders, pixels, cache, the contract of all backends, the drop-in loader
    "tests/pipelines/sample/test_decode.py",
    "tests/pipelines/native/test_strip_window.py",
    "tests/pipelines/native/test_resize.py",
    "tests/pipelines/native/test_window.py",
    "tests/loaders/make/test_native_rows.py",
    "tests/loaders/data/cache/test_hdf5_cache.py",
    "tests/loaders/test_contract.py",
    "tests/loaders/drop_in/test_data_loader.py",
)
# Excluded: slow tests that no version affects, and the dali backend, which these environments do not install.
LEFT_OUT = "dali or memory or bombs or flipped or million or leaks or missing_package"


def run(
    session: nox.Session,
    *more: str,
    tests: Sequence[str] = SELECTION,
    oldest: bool = False,
    turbojpeg: str = "turbojpeg",
    simd: bool = False,
) -> None:
    """Install the package's requirements and `more`, and run `tests`.

    oldest: take the lowest version of each requirement. turbojpeg: the extra that drives libjpeg-turbo. simd: take
    Pillow-SIMD instead of Pillow.
    """
    project = nox.project.load_toml("pyproject.toml")["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for name in (*EXTRAS, turbojpeg) for line in extras[name])]
    if oldest:
        wanted = [re.sub(r">=([0-9.]+).*", r"==\1", line) for line in wanted]
    if simd:
        wanted = ["pillow-simd" if line.startswith("pillow") else line for line in wanted]
    is_lenient = "--if-installable" in session.posargs
    # torch alone and first: the open range of another package may install another build of it.
    for lines in ([line for line in wanted if line.startswith("torch")], [*wanted, *more, *TOOLS]):
        try:
            limit = ("timeout", "600") if is_lenient else ()
            pip = ("python", "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check")
            session.run_install(*limit, *pip, *lines, external=True)
        except CommandFailed:
            shutil.rmtree(session.virtualenv.location)  # otherwise the next run would use the half-installed packages
            if not is_lenient:
                raise
            session.skip("its packages cannot be installed")
    words = [word for word in session.posargs if word != "--if-installable"]
    pytest = ("python", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", f"not ({LEFT_OUT})")
    session.run(*pytest, *tests, *words, env={"PYTHONPATH": "build/path"})


@nox.session(python="3.10")
def oldest(session: nox.Session) -> None:
    """Run with the lowest version of each requirement."""
    run(session, oldest=True)


@nox.session(name="newest-3.11", python="3.11")
def newest_311(session: nox.Session) -> None:
    """Run with the newest versions, and PyTurboJPEG 2, which needs libjpeg-turbo 3."""
    name = ctypes.util.find_library("turbojpeg")
    if name is None or not hasattr(ctypes.CDLL(name), "tj3Init"):
        session.skip("libjpeg-turbo 3 is missing on this machine")
    run(session, turbojpeg="turbojpeg3")


@nox.session(name="newest", python=["3.12", "3.13"])
def newest(session: nox.Session) -> None:
    """Run with the newest versions."""
    run(session)


@nox.session(python="3.11")
def simd(session: nox.Session) -> None:
    """Run with Pillow-SIMD, which is compiled."""
    run(session, simd=True)


@nox.session(python="3.11")
def ray(session: nox.Session) -> None:
    """Run the guide to Ray on a cluster of this machine."""
    run(session, "ray[train]>=2.60", tests=("tests/docs/test_ray_guide.py",))
