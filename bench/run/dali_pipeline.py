"""DALI's own pipeline as its documentation builds it: readers.file, random crop while decoding, resize, normalise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from penstock.bench.record.bench_record import DTYPES, BenchSettings, Options
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.sources.contract import Source
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.sample.dali_graph import dali_message, import_dali
from penstock.pipelines.spec import imagenet_train

DALI_PIPELINE = "DALI's own pipeline (readers.file)"
_DECODER_OPTIONS = ("hw_decoder_load", "device_memory_padding")
PIPELINE_OPTIONS = ("workers", "prefetch", *_DECODER_OPTIONS)  # options of our dali backend that it takes too


class DaliPipeline:
    """Iterates over epochs of (images, labels), whole batches only, in DALI's own order.

    images: [batch, 3, height, width] channels_last on the device, normalised in DALI unless uint8; labels: int64
    [batch]. options: values of PIPELINE_OPTIONS; "workers" are DALI's threads. Raises LoaderError: E-MISUSE for data
    that are no folder of files or have names that are not UTF-8, E-DEPENDENCY without DALI, E-CORRUPT for what DALI
    cannot decode.

    wanted: the work, which is that of our loaders. largest: (width, height) in pixels of the largest known image.

    Attributes:
        about: the options, and the images' dtype if it is not the one asked for.
    """

    def __init__(
        self, folder: Source, served: Source, wanted: BenchSettings, options: Options, largest: tuple[int, int]
    ) -> None:
        if not isinstance(folder, ImageFolder):
            raise LoaderError("E-MISUSE", "readers.file needs a folder of files, and the data are none")
        dtype = _handed_out(wanted)
        chosen = [f"{name} {value}" for name, value in options.items() if value is not None]
        self.about = ", ".join([*chosen, *[str(dtype).removeprefix("torch.")] * (dtype != DTYPES[wanted.dtype])])
        self._steps = len(served) // wanted.batch_size
        files = [_decode_path(served.path(index)) for index in range(len(served))]
        labels = served.labels(np.arange(len(served))).tolist()
        self._batches: Any = None
        dali = import_dali()
        try:
            self._batches = _make_iterator(dali, files, labels, wanted, options, largest)
        except RuntimeError as error:
            raise _as_loader_error(error) from error

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(self._steps):
            try:
                (batch,) = next(self._batches)
            except RuntimeError as error:
                raise _as_loader_error(error) from error
            yield batch["data"].permute(0, 3, 1, 2), batch["label"].squeeze(-1).long()

    def close(self) -> None:
        """Let go of DALI's threads and memory."""
        self._batches = None


def _handed_out(wanted: BenchSettings) -> torch.dtype:
    """Return the images' dtype: float16 for bfloat16, which DALI's normalisation lacks; both take 2 bytes."""
    return torch.float16 if wanted.dtype == "bfloat16" else DTYPES[wanted.dtype]


def _make_iterator(
    dali: Any,
    files: Sequence[str],
    labels: Sequence[int],
    wanted: BenchSettings,
    options: Options,
    largest: tuple[int, int],
) -> Any:
    """Make DALI's endless iterator for PyTorch, whose batches are the pipeline's own memory, not copied."""
    from nvidia.dali.plugin.pytorch import DALIClassificationIterator

    device = torch.device(wanted.device)
    on_gpu = device.type == "cuda"
    index = torch.cuda.current_device() if on_gpu and device.index is None else device.index
    pipe = dali.Pipeline(
        batch_size=wanted.batch_size,
        num_threads=max(1, options["workers"] or 0),
        prefetch_queue_depth=options.get("prefetch") or 2,
        device_id=index if on_gpu else None,
        seed=wanted.seed,
    )
    with pipe:
        data, numbers = dali.fn.readers.file(files=files, labels=labels, random_shuffle=True, name="Reader")
        pipe.set_outputs(
            _build_graph(dali, data, wanted, _gpu_decoder_options(options, largest) if on_gpu else {}),
            numbers.gpu() if on_gpu else numbers,
        )
    pipe.build()
    return DALIClassificationIterator(pipe)


def _gpu_decoder_options(options: Options, largest: tuple[int, int]) -> dict[str, Any]:
    """Return options of the GPU decoder, memory for the largest image among them, as in DALI's examples."""
    width, height = largest
    given = {name: value for name in _DECODER_OPTIONS if (value := options.get(name)) is not None}
    return {"preallocate_width_hint": width, "preallocate_height_hint": height, **given}


def _build_graph(dali: Any, data: Any, wanted: BenchSettings, decoder: dict[str, Any]) -> Any:
    """Build the graph from files to what the model takes."""
    fn, types, pipeline, dtype = dali.fn, dali.types, imagenet_train(wanted.size), _handed_out(wanted)
    height, width = pipeline.size
    images = fn.decoders.image_random_crop(
        data,
        device="cpu" if wanted.device == "cpu" else "mixed",
        output_type=types.RGB,
        random_area=list(pipeline.scale),
        random_aspect_ratio=list(pipeline.ratio),
        adjust_orientation=False,
        **decoder,
    )
    images = fn.resize(images, resize_x=width, resize_y=height, interp_type=types.INTERP_TRIANGULAR)
    mirrored = fn.random.coin_flip(probability=pipeline.flip)
    if dtype == torch.uint8:  # nothing to normalise
        return fn.flip(images, horizontal=mirrored)
    return fn.crop_mirror_normalize(
        images,
        mirror=mirrored,
        dtype=types.FLOAT16 if dtype == torch.float16 else types.FLOAT,
        output_layout="HWC",  # in memory; what is handed out is channels_last, as our batches are
        mean=[255 * mean for mean in pipeline.mean],
        std=[255 * std for std in pipeline.std],
    )


def _decode_path(path: bytes) -> str:
    try:
        return path.decode()
    except UnicodeDecodeError:
        raise LoaderError("E-MISUSE", "a file's name is not UTF-8, which DALI needs", path=path) from None


def _as_loader_error(error: Exception) -> LoaderError:
    return LoaderError("E-CORRUPT", f"DALI: {dali_message(error)}")
