"""Writes the findings of a step immediately, so that an aborted step loses none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.loaders.system.json_file import write_json


class Notes:
    """Hold findings by name; each is printed, and written with all others, when it is noted.

    path: path of the JSON file; None writes none.
    """

    def __init__(self, path: str | None) -> None:
        self.path, self.found = None if path is None else Path(path), dict[str, Any]()

    def note(self, name: str, value: Any) -> None:
        """Note a finding that is valid in JSON."""
        self.found[name] = value
        print(f"{name}: {value}", flush=True)
        if self.path is not None:
            write_json(self.path, self.found)
