"""`penstock iterate`: writes the stream as JSON lines, to compare it between runs and machines."""

from __future__ import annotations

import json
import sys
import warnings
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.bench.commands import shared_options as common
from penstock.bench.commands.data_options import takes_data_options

if TYPE_CHECKING:
    from penstock.loaders.front.batch import Batch
    from penstock.loaders.front.loader import Loader


@takes_data_options
def iterate(  # noqa: PLR0913  a command's options are its parameters
    data: common.Data,
    dump: Annotated[str, typer.Option(help="Where the JSON lines go; - is standard output.")] = "-",
    backend: common.Backend = "torch",
    decoder: common.Decoder = "auto",
    workers: common.Workers = None,
    batch_size: common.BatchSize = 64,
    size: common.Size = 224,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed; that of --state-in, or 0, by default.")] = None,
    epochs: Annotated[int, typer.Option(min=0, help="Stop before this epoch number.")] = 1,
    rank: Annotated[int | None, typer.Option(min=0, help="Rank, with --world-size.")] = None,
    world_size: Annotated[int | None, typer.Option(min=1, help="Number of ranks, with --rank.")] = None,
    evaluate: Annotated[bool, typer.Option("--eval", help="Centre crops, in order, all samples.")] = False,
    shuffle: Annotated[bool | None, typer.Option("--shuffle/--no-shuffle", help="Shuffle each epoch.")] = None,
    drop_last: Annotated[bool | None, typer.Option("--drop-last/--no-drop-last", help="Drop a partial batch.")] = None,
    on_bad_sample: Annotated[str, typer.Option(help="raise or replace.")] = "raise",
    on_repaired: common.OnRepaired = None,
    max_bad: common.MaxBad = None,
    cache: common.Cache = None,
    prefetch: common.Prefetch = None,
    watchdog: Annotated[float | None, typer.Option(help="Seconds a worker may be silent.")] = None,
    stop_after: Annotated[int | None, typer.Option(min=0, help="Stop after so many batches.")] = None,
    state_in: Annotated[Path | None, typer.Option(help="Continue from this state.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict/--no-strict", help="Refuse a state of another pipeline or policy.")
    ] = True,
    state_out: Annotated[Path | None, typer.Option(help="Write the state here at the end.")] = None,
    ledger: Annotated[Path | None, typer.Option(help="Write what became of every sample here.")] = None,
    *,
    data_options: dict[str, Any],
) -> None:
    """Write one JSON line per batch: epoch, step, index, label, crop, flip and crc32 of each sample's uint8 pixels.

    The same data, seed and pipeline give the same lines for every backend, decoder, worker count and prefetch; only a
    lossy --cache has pixels of its own. Several ranks' padding has index -1. The ledger's totals go to standard error.
    """
    import torch

    from penstock.loaders import create_loader
    from penstock.loaders.system.durable_file import ensure_writable
    from penstock.pipelines import imagenet_eval, imagenet_train

    state = _read_state(state_in) if state_in else {}
    if seed is None:
        seed = state["seed"] if type(state.get("seed")) is int else 0
    for file in (state_out, ledger):
        if file is not None:
            ensure_writable(file)
    given: dict[str, Any] = {"workers": workers, "cache": cache, "prefetch": prefetch, "watchdog_s": watchdog}
    warnings.filterwarnings("ignore", "the data has no labels")  # nothing is trained here
    loader = create_loader(
        data,
        backend=backend,
        decoder=decoder,
        pipeline=imagenet_eval(size) if evaluate else imagenet_train(size),
        batch_size=batch_size,
        dtype=torch.uint8,
        seed=seed,
        shuffle=shuffle,
        drop_last=drop_last,
        rank=rank,
        world_size=world_size,
        on_bad_sample=on_bad_sample,
        on_repaired=on_repaired,
        max_bad=max_bad,
        **data_options,
        **{name: value for name, value in given.items() if value is not None},
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
