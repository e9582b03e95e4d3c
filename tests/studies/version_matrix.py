"""Runs a fast part of the suite with the oldest and the newest versions that are declared, an environment for each.

`python tests/studies/version_matrix.py [NAME ...]` makes the environments under build/matrix, or takes those that are
there, and prints a line for each: passed, failed, or left out where its Python is not on this machine. Exit code 1 if
one failed, or could not be installed.
"""

from __future__ import annotations

import argparse
import ctypes.util
import glob
import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "matrix"
TOOLS = ("pytest>=8", "pytest-timeout>=2.3")
SELECTION = (  # decoders, pixels, cache, the contract of all backends, the drop-in
    "tests/pipelines/sample/test_decode.py",
    "tests/pipelines/native/test_strip_window.py",
    "tests/pipelines/native/test_resize.py",
    "tests/pipelines/native/test_window.py",
    "tests/loaders/make/test_native_rows.py",
    "tests/loaders/data/cache/test_hdf5_cache.py",
    "tests/loaders/test_contract.py",
    "tests/loaders/drop_in/test_data_loader.py",
)
# Left out: what takes long, and what no version changes; and the dali backend, which is no extra of these environments.
LEFT_OUT = "dali or memory or bombs or flipped or million or leaks or missing_package"
# Of a user, so that decoders, cache and exporters are there.
_PATIENCE_S = 600.0
EXTRAS = ("pillow", "hdf5", "prometheus")


@dataclass(frozen=True, kw_only=True)
class Environment:
    """One interpreter and what is installed in it.

    Attributes:
        python: version of the interpreter, as "3.10".
        oldest: whether each requirement is installed in its lowest version, else in its newest.
        turbojpeg: the extra that drives libjpeg-turbo; 1.x is that of libjpeg-turbo 2.
        instead: distribution -> what is installed in its place.
    """

    python: str
    oldest: bool = False
    turbojpeg: str = "turbojpeg"
    instead: dict[str, str] = field(default_factory=dict)


ENVIRONMENTS = {
    "oldest": Environment(python="3.10", oldest=True),
    "newest-3.11": Environment(python="3.11", turbojpeg="turbojpeg3"),
    "newest-3.12": Environment(python="3.12"),
    "newest-3.13": Environment(python="3.13"),
    "simd": Environment(python="3.11", instead={"pillow": "pillow-simd"}),
}


def requirements(environment: Environment, declared: dict[str, list[str]]) -> list[str]:
    """Return what pip installs. declared: "" -> the dependencies, extra -> its own, as pyproject.toml has them."""
    wanted = declared[""] + [line for extra in (*EXTRAS, environment.turbojpeg) for line in declared[extra]]
    found = []
    for line in wanted:
        name = re.split(r"[<>=!~ ;]", line)[0]
        if name.lower() in environment.instead:
            found.append(environment.instead[name.lower()])
        else:
            found.append(re.sub(r">=([0-9.]+).*", r"==\1", line) if environment.oldest else line)
    return [*found, *TOOLS]


def declared_requirements(text: str) -> dict[str, list[str]]:
    """Return the requirements of a pyproject.toml: "" -> the dependencies, extra -> its own."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")  # pytest brings tomli
    project = toml.loads(text)["project"]
    return {"": project["dependencies"], **project["optional-dependencies"]}


def interpreter(version: str) -> str | None:
    """Return a Python of that version: of PATH, of pyenv or of uv; None where there is none."""
    home = os.path.expanduser("~")
    pyenv = os.environ.get("PYENV_ROOT", f"{home}/.pyenv")
    uv = os.environ.get("UV_PYTHON_INSTALL_DIR", f"{home}/.local/share/uv/python")
    places = [shutil.which(f"python{version}"), sys.executable]
    places += glob.glob(f"{pyenv}/versions/{version}*/bin/python") + glob.glob(f"{uv}/cpython-{version}*/bin/python3")
    asked = "import sys; print('%d.%d' % sys.version_info[:2])"
    for place in filter(None, places):
        told = subprocess.run([place, "-c", asked], capture_output=True, text=True, check=False)
        if told.stdout.strip() == version:  # pyenv's own python3.10 may be a stand-in that only says why not
            return place
    return None


def has_libjpeg_turbo_3() -> bool:
    """Return whether libturbojpeg is on this machine, with the functions that PyTurboJPEG 2 calls."""
    name = ctypes.util.find_library("turbojpeg")
    return name is not None and hasattr(ctypes.CDLL(name), "tj3Init")


def installed(
    name: str, environment: Environment, python: str, declared: dict[str, list[str]], *, timeout_s: float | None = None
) -> Path:
    """Return the interpreter of the environment, which is made unless it is there with these requirements.

    Raises subprocess.CalledProcessError where pip fails, TimeoutExpired where one call of it takes longer.
    """
    folder, wanted = FOLDER / name, requirements(environment, declared)
    stamp, text = folder / "requirements.txt", "\n".join(wanted) + "\n"
    inside = folder / "bin" / "python"
    if not (stamp.is_file() and stamp.read_text() == text):
        subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(inside), "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
        torch = [line for line in wanted if line.startswith("torch")]
        # torch alone and first: another's open range may fetch another build of it
        subprocess.run([*pip, *torch], check=True, timeout=timeout_s)
        subprocess.run([*pip, *wanted], check=True, timeout=timeout_s)
        stamp.write_text(text)
    return inside


def run(
    name: str, environment: Environment, declared: dict[str, list[str]], more: Sequence[str], *, lenient: bool = False
) -> bool | None:
    """Run the selection in one environment; None where its interpreter, or a library of the system, is missing.

    lenient: None, too, where the packages cannot be installed, as on a machine whose index does not hold them.
    """
    python = interpreter(environment.python)
    if python is None or (environment.turbojpeg == "turbojpeg3" and not has_libjpeg_turbo_3()):
        missing = f"Python {environment.python}" if python is None else "libjpeg-turbo 3"
        print(f"matrix: {name}: left out, there is no {missing} on this machine", flush=True)
        return None
    try:
        inside = installed(name, environment, python, declared, timeout_s=_PATIENCE_S if lenient else None)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"matrix: {name}: not installed: {error}", flush=True)
        return None if lenient else False
    path = str(ROOT / "build" / "path")
    command = [
        str(inside),
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-k",
        f"not ({LEFT_OUT})",
        *SELECTION,
        *more,
    ]
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=False)
    print(f"matrix: {name}: {'failed' if ended.returncode else 'passed'}, Python {environment.python}", flush=True)
    return ended.returncode == 0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ENVIRONMENTS)}; all by default")
    help_ = "leave out what cannot be installed here within ten minutes, instead of failing"
    parser.add_argument("--if-installable", action="store_true", help=help_)
    arguments, more = parser.parse_known_args()
    unknown = set(arguments.names) - set(ENVIRONMENTS)
    if unknown:
        parser.error(f"no environment {', '.join(sorted(unknown))}: there are {', '.join(ENVIRONMENTS)}")
    declared = declared_requirements((ROOT / "pyproject.toml").read_text("utf-8"))
    names, lenient = arguments.names or ENVIRONMENTS, arguments.if_installable
    results = [run(name, ENVIRONMENTS[name], declared, more, lenient=lenient) for name in names]
    return int(False in results)


if __name__ == "__main__":
    sys.exit(main())
