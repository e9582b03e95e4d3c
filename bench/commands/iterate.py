"""`penstock iterate`: writes the stream as JSON lines, to compare runs and machines."""

from __future__ import annotations

import json
import sys
import warnings
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.bench.commands import shared_options as common
from penstock.bench.commands.data_options import DataOptions
from penstock.bench.record.settings import BatchSize, Cache, Interpolation, Prefetch, Size, crops_of, setting

if TYPE_CHECKING:
    from penstock.loaders.front.batch import Batch
    from penstock.loaders.front.loader import Loader


@dataclass(frozen=True, kw_only=True)
class StreamOptions(common.LoadingOptions, common.PolicyOptions):
    """Options of the stream, named as arguments of create_loader."""

    batch_size: BatchSize = 64
    rank: int | None = setting(None, "Rank, with --world-size.", min=0)
    world_size: int | None = setting(None, "Number of ranks, with --rank.", min=1)
    shuffle: bool | None = setting(None, "Shuffle each epoch.")
    epoch_samples: int | None = setting(None, "Samples per shuffled epoch.", min=1)
    drop_last: bool | None = setting(None, "Drop a partial batch.")
    cache: Cache = None
    prefetch: Prefetch = None


@common.takes_settings(options=StreamOptions, data_options=DataOptions)
def iterate(  # noqa: PLR0913  a command's options are its parameters
    data: common.Data,
    dump: Annotated[str, typer.Option(help="File for the JSON lines; - is standard output.")] = "-",
    size: Size = 224,
    interpolation: Interpolation = "bilinear",
    seed: Annotated[int | None, typer.Option(min=0, help="Seed; by default the one of --state-in, or 0.")] = None,
    epochs: Annotated[int, typer.Option(min=0, help="Stop before this epoch number.")] = 1,
    evaluate: Annotated[bool, typer.Option("--eval", help="Centre crops, in order, all samples.")] = False,
    watchdog: Annotated[float | None, typer.Option(help="Seconds that a worker may be silent.")] = None,
    stop_after: Annotated[int | None, typer.Option(min=0, help="Stop after this many batches.")] = None,
    state_in: Annotated[Path | None, typer.Option(help="Continue from this state.")] = None,
    strict: Annotated[bool, typer.Option(help="Refuse a state of another pipeline or policy.")] = True,
    state_out: Annotated[Path | None, typer.Option(help="Write the state here at the end.")] = None,
    ledger: Annotated[Path | None, typer.Option(help="Write the fate of every sample here.")] = None,
    *,
    options: dict[str, Any],
    data_options: dict[str, Any],
) -> None:
    """Write one JSON line per batch: epoch, step, index, label, crop, flip and crc32 of each sample's uint8 pixels.

    The same data, seed and pipeline give the same lines for every backend, decoder, worker count and prefetch, except
    that the pixels of a lossy --cache differ. Padding of ranks has index -1. Ledger totals go to standard error.
    """
    import torch

    from penstock.loaders import create_loader
    from penstock.loaders.system.durable_file import ensure_writable

    state = _read_state(state_in) if state_in else {}
    if seed is None:
        seed = state["seed"] if type(state.get("seed")) is int else 0
    for file in (state_out, ledger):
        if file is not None:
            ensure_writable(file)
    options["watchdog_s"] = watchdog
    warnings.filterwarnings("ignore", "the data has no labels")  # this command does not train
    loader = create_loader(
        data,
        pipeline=crops_of(size, interpolation, evaluate=evaluate),
        dtype=torch.uint8,
        seed=seed,
        **{name: value for name, value in options.items() if value is not None},
        **data_options,
    )
    with loader, nullcontext(sys.stdout) if dump == "-" else open(dump, "w") as out:
        if state_in:
            loader.load_state_dict(state, strict=strict)
        try:
            for line in _lines(loader, epochs, stop_after):
                out.write(line)
            out.flush()
        finally:
            if ledger:
                ledger.write_text(json.dumps([entry.as_dict() for entry in loader.ledgers()], indent=2) + "\n")
        if state_out:
            state_out.write_text(json.dumps(loader.state_dict()) + "\n")
    for entry in loader.ledgers():
        print(f"epoch {entry.epoch}: {entry.line()}", file=sys.stderr)


def _lines(loader: Loader, epochs: int, stop_after: int | None) -> Iterator[str]:
    left = float("inf") if stop_after is None else stop_after
    while loader.epoch < epochs and left > 0:
        for batch in loader.batches():
            yield json.dumps(batch_record(batch)) + "\n"
            left -= 1
            if left <= 0:
                return


def batch_record(batch: Batch) -> dict[str, Any]:
    """Return the JSON record of one uint8 batch in host memory."""
    from penstock.pipelines.targets import map_targets

    pixels = batch.images.permute(0, 2, 3, 1).numpy()
    return {
        "epoch": batch.epoch,
        "step": batch.step,
        "index": batch.index.tolist(),
        "label": map_targets(lambda part: part.tolist(), batch.labels),
        "crop": batch.windows.tolist(),
        "flip": batch.flips.tolist(),
        "crc32": [zlib.crc32(image.tobytes()) for image in pixels],
    }


def _read_state(path: Path) -> dict[str, Any]:
    from penstock.loaders.system.json_file import decode_json
    from penstock.pipelines.errors import LoaderError

    try:
        return decode_json(path.read_bytes(), dict[str, Any])
    except (OSError, ValueError) as error:
        raise LoaderError("E-STATE", f"the state cannot be read ({error})", path=str(path)) from None
