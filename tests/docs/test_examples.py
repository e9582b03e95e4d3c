"""The examples of the documentation: each script runs on a small set of photos, the notebook cell by cell."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from range_server import serve_ranges

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
SMALL = ["--epochs", "1", "--size", "32", "--batch-size", "4"]
# Arguments, required packages, and a word that the script prints.
SCRIPTS: dict[str, tuple[list[str], str, str]] = {
    "train_torch.py": (["imagenet", *SMALL], "torch", "accuracy"),
    "train_lightning.py": (["imagenet", *SMALL], "lightning", "accuracy"),
    "train_accelerate.py": (["imagenet", *SMALL], "accelerate", "loss"),
    "segmentation.py": (["photos", "masks", *SMALL, "--classes", "3"], "torch", "loss"),
    "simclr_views.py": (["photos", *SMALL], "torch", "loss"),
    "inference.py": (["photos", "predictions.csv", *SMALL[2:]], "torch", "10 images"),
    "tars_over_http.py": (["train-{0000..0001}.tar", "--batch-size", "4"], "torch", "10 images"),
}


@pytest.fixture
def here(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the data, which is the current folder."""
    shutil.copytree(photos, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "here"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", SCRIPTS)
def test_script_runs(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, package, word = SCRIPTS[name]
    compile((EXAMPLES / name).read_text("utf-8"), name, "exec")
    pytest.importorskip(package)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many warnings of Lightning do not concern the loader
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert word in capsys.readouterr().out


def test_every_example_is_listed_and_short() -> None:
    page = (EXAMPLES / "index.md").read_text("utf-8")
    found = {path.name: path.read_text("utf-8") for path in EXAMPLES.glob("*.py")}
    assert set(found) == set(SCRIPTS)
    assert [name for name in found if f"]({name})" not in page] == []
    assert {name: len(text.splitlines()) for name, text in found.items() if len(text.splitlines()) > 70} == {}


def test_tars_are_fetched_over_http_once(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("obstore")
    script, name = str(EXAMPLES / "tars_over_http.py"), "train-{0000..0001}.tar"
    with serve_ranges(here) as server:
        options = ["--local-cache", str(here / "copy"), "--batch-size", "4"]
        monkeypatch.setattr(sys, "argv", [script, f"{server.url}/{name}", *options])
        sent = []
        for _ in range(2):
            runpy.run_path(script, run_name="__main__")
            sent.append(server.num_bytes)
    assert capsys.readouterr().out.count("10 images") == 2
    images = sum(path.stat().st_size for path in (here / "photos").rglob("*.jpg"))
    assert sent[0] > images
    assert sent[1] - sent[0] < images / 10


@pytest.mark.slow
def test_plain_torch_on_two_ranks_counts_every_image_once(here: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, str(EXAMPLES / "train_torch.py"), "imagenet", *SMALL[:-1], "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert "of 4\n" in done.stdout


@pytest.mark.usefixtures("here")
def test_notebook_runs() -> None:
    cells = json.loads((EXAMPLES / "first_look.ipynb").read_text("utf-8"))["cells"]
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec(compile("".join(cell["source"]), "first_look.ipynb", "exec"), namespace)
    assert len(namespace["labels"]) == 8
