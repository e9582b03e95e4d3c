"""Prints the packages of an image, one per line: dependencies and the extras of a target: cpu, cuda12 or cuda13."""

import sys
from pathlib import Path

import tomllib  # Debian 12's Python is 3.11

# Without Pillow: the image has Pillow-SIMD instead.
_ALL = ("hdf5", "turbojpeg")
EXTRAS = {"cpu": _ALL, "cuda12": (*_ALL, "dali-cuda120"), "cuda13": (*_ALL, "dali-cuda130")}


def image_requirements(project: dict, target: str) -> list[str]:
    """Return the requirements of `target`; `project` is the table of that name in pyproject.toml."""
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *(line for extra in EXTRAS[target] for line in extras[extra])]


if __name__ == "__main__":
    pyproject, target = sys.argv[1:]
    print(*image_requirements(tomllib.loads(Path(pyproject).read_text("utf-8"))["project"], target), sep="\n")
