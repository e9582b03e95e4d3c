"""Studies are run by hand only, so these tests compare their imports with the package."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path


def missing_imports(path: Path) -> list[str]:
    """Return the names that a program imports from the package and that do not exist there."""
    nodes = [n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.ImportFrom)]
    ours = [(n.module, a.name) for n in nodes if n.module and n.module.startswith("penstock") for a in n.names]
    return [f"{path.name}: {module}.{name}" for module, name in ours if not can_import(module, name)]


def can_import(module: str, name: str) -> bool:
    """Return whether a module has `name`, or is a package with a module of that name."""
    try:
        if hasattr(importlib.import_module(module), name):
            return True
        return importlib.util.find_spec(f"{module}.{name}") is not None
    except ImportError:
        return False


def test_studies_import_existing_names(tmp_path: Path) -> None:
    studies = sorted(Path(__file__).parent.rglob("*.py"))
    assert [missing for study in studies for missing in missing_imports(study)] == []
    stale = tmp_path / "stale.py"
    stale.write_text("from penstock.loaders.data.remote.fetcher import Range, _no_such\nfrom penstock.gone import it\n")
    assert missing_imports(stale) == [
        "stale.py: penstock.loaders.data.remote.fetcher._no_such",
        "stale.py: penstock.gone.it",
    ]
