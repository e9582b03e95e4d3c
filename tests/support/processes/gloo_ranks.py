"""Ranks of torch.distributed as processes of their own, on one machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_ranks(script: str, folder: Path, world: int, *more: str) -> list[Any]:
    """What `script` wrote as JSON to OUT.RANK.json on each of `world` ranks.

    It is started with the arguments RANK WORLD STORE OUT and `more`; STORE is a file for the ranks to meet at.
    """
    out = folder / f"world{world}"
    arguments = [str(world), f"{out}.store", str(out), *more]
    command = [sys.executable, "-W", "error", "-c", script]
    ranks = [subprocess.Popen([*command, str(rank), *arguments], stderr=subprocess.PIPE) for rank in range(world)]
    try:
        errors = [rank.communicate(timeout=700)[1].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * world, errors
    return [json.loads(out.with_name(f"{out.name}.{rank}.json").read_text()) for rank in range(world)]
