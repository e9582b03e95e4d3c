"""Ranks of torch.distributed as separate processes, on one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forked_commands import Commands


def run_ranks(commands: Commands, script: str, folder: Path, world: int, *more: str) -> list[Any]:
    """Return the JSON that `script` wrote to OUT.RANK.json on each of `world` ranks.

    It is started with the arguments RANK WORLD STORE OUT and `more`; the ranks meet at the file STORE. Warnings
    are errors.
    """
    out, file = folder / f"world{world}", folder / "rank.py"
    file.write_text(f"import warnings\nwarnings.simplefilter('error')\n{script}")
    ranks = [commands.start(rank, world, f"{out}.store", out, *more, script=file) for rank in range(world)]
    assert [rank.wait() for rank in ranks] == [0] * world, [rank.errors for rank in ranks]
    return [json.loads(out.with_name(f"{out.name}.{rank}.json").read_text()) for rank in range(world)]
