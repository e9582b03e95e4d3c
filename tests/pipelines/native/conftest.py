"""The fixture of every test of the native library."""

from __future__ import annotations

import ctypes

import native_tests
import pytest


@pytest.fixture(scope="session")
def native() -> ctypes.CDLL:
    """Return the native library, built from the tree's C files; skips where there is no C compiler."""
    return native_tests.native()
