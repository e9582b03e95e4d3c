"""Builds the native library into wheels and editable installs: a setuptools command, named in pyproject.toml.

Only setuptools imports this module, by its path, before penstock is installed.
"""

from __future__ import annotations

import runpy
from pathlib import Path

from setuptools.command.build_py import build_py

_BUILD = Path(__file__).with_name("build.py")


class BuildWithLibrary(build_py):  # type: ignore[misc]
    """Copy the modules and build the library next to them (next to its sources for an editable install)."""

    def run(self) -> None:
        """Tag a wheel with its platform if it contains the library, but not with a Python version."""
        super().run()
        folder = _BUILD.parent if self.editable_mode else Path(self.build_lib, "penstock/pipelines/native")
        library = folder / "libpenstock.so"
        if not self.editable_mode:
            library.unlink(missing_ok=True)  # from an earlier build
        runpy.run_path(str(_BUILD))["main"](library)
        wheel = self.distribution.get_command_obj("bdist_wheel", create=False)
        if wheel is not None and library.exists() and not self.editable_mode:
            wheel.plat_name_supplied = True
