"""The code of the documentation: each Python block of each page runs, or compiles if it cannot run."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A block; the preceding comment gives the reason why it cannot run here, or marks another project's code.
_BLOCK = re.compile(r"(?:<!-- no-run: ([^\n]*) -->\n)?^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
# Replacements that make a block smaller or slower than in a training run.
_SMALLER = (
    (re.compile(r"\bbatch_size=\d+"), "batch_size=4"),
    (re.compile(r"\brange\(\d+\)"), "range(1)"),
    (re.compile(r"\bepoch_samples=[\d_]+"), "epoch_samples=8"),
    (re.compile(r'"cuda"'), '"cpu"'),
)


class Block(NamedTuple):
    """Hold a block of a page, and the reason if it is not run."""

    page: str
    language: str
    code: str
    reason: str


def blocks_of(page: str, text: str) -> list[Block]:
    """Return the blocks of a page, without the indent of those in lists and tabs."""
    text = re.sub(r"^ +(?=```)", "", text, flags=re.MULTILINE)
    return [Block(page, language, code, reason) for reason, language, code in _BLOCK.findall(text)]


BLOCKS = {
    page.relative_to(ROOT).as_posix(): blocks_of(page.relative_to(ROOT).as_posix(), page.read_text("utf-8"))
    for page in PAGES
}


def missing_names(code: str) -> list[str]:
    """Return the missing names that a block imports from penstock. Raises SyntaxError if it is not Python."""
    tree = ast.parse(code)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock"):
            module = importlib.import_module(str(node.module))
            found += [f"{node.module}.{name.name}" for name in node.names if not hasattr(module, name.name)]
    return found


def made_smaller(code: str) -> str:
    """Return a block as it runs here: small batches, one epoch, on the CPU."""
    for pattern, text in _SMALLER:
        code = pattern.sub(text, code)
    return code


@pytest.fixture
def kept_globals() -> Iterator[None]:
    """Restore global settings that the code of a page may change."""
    state = torch.random.get_rng_state()
    yield
    torch.random.set_rng_state(state)


@pytest.mark.usefixtures("kept_globals")
@pytest.mark.parametrize(
    "page", [page for page, blocks in BLOCKS.items() if any(b.language == "python" for b in blocks)]
)
def test_python_blocks_run(page: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(photos, tmp_path / "here", symlinks=True)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in BLOCKS[page]:
        if block.language != "python":
            continue
        assert missing_names(block.code) == []
        if not block.reason:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # such as: the cache is built on first use
                exec(compile(made_smaller(block.code), page, "exec"), namespace)


def test_wrong_code_is_found() -> None:
    (block,) = blocks_of("a.md", "<!-- no-run: a GPU -->\n```python\nfrom penstock.loaders import Gone\n```\n")
    assert (block.reason, missing_names(block.code)) == ("a GPU", ["penstock.loaders.Gone"])
    assert made_smaller('f(batch_size=256, device="cuda")') == 'f(batch_size=4, device="cpu")'
