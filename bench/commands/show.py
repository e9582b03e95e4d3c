"""`penstock show`: a picture of what training sees."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.bench.commands import shared_options as common
from penstock.bench.commands.data_options import TextDataOptions
from penstock.bench.record.settings import Cache, Size, setting


@dataclass(frozen=True, kw_only=True)
class ShowOptions(common.LoadingOptions, common.PolicyOptions):
    """Options of the loader, named as arguments of create_loader."""

    shuffle: bool | None = setting(None, "Shuffle; by default unless --eval.")
    cache: Cache = None


@dataclass(frozen=True, kw_only=True)
class FieldOptions:
    """Fields of the samples, named as arguments of with_fields."""

    mask: str | None = setting(None, "Folder of masks, a pattern such as 'masks/{name}.png', or COCO's JSON file.")
    coco: str | None = setting(None, "COCO's JSON file: boxes, classes and keypoints.")
    yolo: str | None = setting(None, "Folder of YOLO's text files.")


def _writable_picture(path: Path | None) -> Path | None:
    """Reject a file of an unknown format, or one that cannot be written, before the work begins."""
    from penstock.loaders.show.picture import picture_format

    if path is not None:
        picture_format(path)
    return common.writable(path)


@common.takes_settings(options=ShowOptions, fields=FieldOptions, data_options=TextDataOptions)
def show(
    data: common.Data,
    n: Annotated[int, typer.Option("--n", "-n", min=1, max=1024, help="Number of samples.")] = 16,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, callback=_writable_picture, help="Write the picture here, by suffix.")
    ] = None,
    size: Size = 224,
    seed: Annotated[int, typer.Option(min=0, help="Seed.")] = 0,
    evaluate: Annotated[bool, typer.Option("--eval", help="Centre crops, in order.")] = False,
    *,
    options: dict[str, Any],
    fields: dict[str, Any],
    data_options: dict[str, Any],
) -> None:
    """Show samples as training sees them: crops, labels as class names, boxes, masks, keypoints, texts and names.

    In a terminal the picture is drawn with half blocks; --out writes a file in the format of its suffix, such as .png
    or .jpg, and prints the labels, names and texts. Fields of caches are shown too.
    """
    from rich.console import Console

    console = Console()
    if out is None and not console.is_terminal:
        raise ValueError("standard output is not a terminal: pass --out look.png")
    from penstock.loaders import create_loader, with_fields
    from penstock.pipelines import imagenet_eval, imagenet_train

    warnings.filterwarnings("ignore", "the data has no labels")  # this command does not train
    given = {name: value for name, value in fields.items() if value is not None}
    source = with_fields(data, **given, **data_options) if given else data
    loader = create_loader(
        source,
        pipeline=imagenet_eval(size) if evaluate else imagenet_train(size),
        batch_size=n,
        seed=seed,
        drop_last=False,
        **{name: value for name, value in options.items() if value is not None},
        **({} if given else data_options),
    )
    with loader:
        picture = loader.show(n)
    if out is None:
        console.print(picture)
    else:
        picture.save(out)
        print(*picture.lines, f"{len(picture)} samples: {out}", sep="\n")
