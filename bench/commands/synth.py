"""`penstock synth`: writes a demo data set with statistics like those of ImageNet photos."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def synth(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write DIR/train and DIR/val.")],
    images: Annotated[int, typer.Option(min=1, help="Training images.")] = 640,
    validation: Annotated[int, typer.Option(min=0, help="Validation images.")] = 160,
    classes: Annotated[int, typer.Option(min=1, help="Classes.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed; the same seed and counts give the same files.")] = 0,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one per processor by default.")] = None,
) -> None:
    """Write a demo set of JPEG photos (about 500x400 pixels, 110 KB; a few unusual) with learnable labels."""
    from penstock.bench.probe.data.demo_set import synthesise
    from penstock.loaders.system.progress_bar import ProgressBar

    with ProgressBar("writing photos") as bar:
        num_bytes = synthesise(
            folder, images=images, validation=validation, classes=classes, seed=seed, workers=workers, progress=bar.show
        )
    size = f"{num_bytes / 1e6:.0f} MB, {num_bytes / (images + validation) / 1e3:.0f} KB per image"
    print(f"{folder}: {images} + {validation} images, {classes} classes, {size}")
