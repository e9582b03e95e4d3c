"""The gate ends, whatever a test does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PLANTED = """
import contextlib, time
def test_that_hangs():
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(100)
"""


def test_a_test_that_ignores_its_timeout_ends_its_process(tmp_path: Path) -> None:
    shutil.copy(HERE / "conftest.py", tmp_path)
    (tmp_path / "test_planted.py").write_text(PLANTED)
    (tmp_path / "pytest.ini").touch()
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout=2", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(HERE / "support/processes")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 1
    assert "Timeout (0:00:02" in run.stderr
    assert "most recent call first" in run.stderr
