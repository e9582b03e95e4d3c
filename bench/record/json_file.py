"""Writing a JSON file, as every command with `--json` does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_json(file: Path, document: dict[str, Any]) -> None:
    """Write `document` as indented JSON to `file`; its folder is made if it is missing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=2) + "\n")
