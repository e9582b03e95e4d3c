"""Command-line options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    Path, typer.Argument(metavar="DATA", help="Folder of images (class folders, or flat for one class), or a cache.")
]
Backend = Annotated[str, typer.Option(help="Who does the work: torch, hdf5 or dali; auto takes the saved profile.")]
Decoder = Annotated[str, typer.Option(help="JPEG decoder: auto, simplejpeg, turbojpeg or pillow.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Images a batch and rank.")]
Size = Annotated[int, typer.Option(min=1, help="Height and width of the images handed out, in pixels.")]
Workers = Annotated[
    int | None, typer.Option(min=0, help="Worker processes; one a processor by default, 0 works in the main process.")
]
Cache = Annotated[
    Path | None,
    typer.Option(help="HDF5 cache of DATA, for backends hdf5 and dali; built on first use if it is not there."),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of order, crops and flips.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N; auto takes cuda where there is one.")]


def resolve_device(name: str) -> str:
    """`name`, with "auto" resolved. Raises ValueError for cuda where there is none."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {name!r}: this torch sees no CUDA device (torch {torch.__version__})")
    return name
