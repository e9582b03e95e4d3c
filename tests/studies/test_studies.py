"""The programs that are run by hand can still be imported: what they use of the product is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = sorted(path for path in HERE.glob("*.py") if not path.name.startswith("test_"))
FOREIGN = {"samples_by_ffcv": "ffcv", "samples_by_dali": "nvidia"}  # what else they need

_IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_programs_can_be_imported() -> None:
    assert len(PROGRAMS) > 10
    support = [str(path) for path in (ROOT / "tests" / "support").iterdir() if path.is_dir()]
    names = [path.stem for path in PROGRAMS if path.stem not in FOREIGN]
    code = f"import sys; sys.path[:0] = {[str(HERE), *support]!r}\n{_IMPORT_ALL}"
    run = subprocess.run([sys.executable, "-c", code, *names], cwd=ROOT, capture_output=True, text=True, check=False)
    if "No module named" in run.stderr and "penstock" not in run.stderr.rpartition("No module named")[2]:
        pytest.skip(run.stderr.splitlines()[-1])
    assert run.returncode == 0, run.stderr
