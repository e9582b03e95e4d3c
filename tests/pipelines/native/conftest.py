"""Fixtures for all tests of the native library."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import native_tests
import pytest
from native_windows import variant


@pytest.fixture(scope="session")
def native() -> ctypes.CDLL:
    """Return the native library, built from the tree's C files; skips without a C compiler."""
    return native_tests.native()


@pytest.fixture(params=[True, False], ids=["avx2", "plain"])
def library(native: ctypes.CDLL, request: pytest.FixtureRequest) -> Iterator[ctypes.CDLL]:
    """Return the library, once with AVX2 and once without."""
    with variant(native, request.param):
        yield native
