"""The sample stage as a DALI graph that our plan drives: decode the window, resize antialiased, mirror.

Parity with the other decoders: EXIF is left alone (turned images do not come here), chroma is upsampled as libjpeg does
("fancy"), the DCT is the accurate one, and the resize is the antialiased linear one with windows on whole pixels. On a
CPU the decoded pixels are bit-exact, but for windows of one column (which do not come here either). The resize rounds
otherwise than torch's, by one level, and at the border of the crop it repeats the outermost pixels where torch leaves
them out: a few levels in one of some thousand values.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import Pixels, Window
from penstock.pipelines.jpeg.header import SOI, JpegHeader

_OLDEST = (2, 2)  # before it, image_slice had no word on EXIF
_SHOWN = 160  # characters of DALI's own words in an error line
_NO_DRIVER = "cuda|driver|libnvcuvid|nvml|device"
_APP0, _APP14 = 0xE0, 0xEE
# A grey baseline JPEG of 8 x 8 pixels: what is decoded to warm a graph up. Quantised by 1 throughout; one block, all
# its coefficients 0.
_BLANK_JPEG = b"".join(
    (
        SOI,
        b"\xff\xdb\x00\x43\x00" + b"\x01" * 64,
        b"\xff\xc0\x00\x0b\x08\x00\x08\x00\x08\x01\x01\x11\x00",
        b"\xff\xc4\x00\x14\x00\x01" + b"\x00" * 15 + b"\x00",
        b"\xff\xc4\x00\x14\x10\x01" + b"\x00" * 15 + b"\x00",
        b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00\x3f",
        b"\xff\xd9",
    )
)


class CropTask(NamedTuple):
    """One row for DALI: a JPEG that holds the window (x, y, width, height), or the window's pixels; mirrored or not.

    data: bytes, or contiguous uint8 [height, width, 3].
    """

    data: bytes | Pixels
    window: Window
    flip: bool


@dataclass(frozen=True, kw_only=True)
class GraphSettings:
    """How a graph is built. size: (height, width) of its images; batch_size: the most rows of a batch; threads: of the
    CPU; depth: batches under way; device_id: of the GPU, None for the CPU. The rest are knobs of the GPU decoder:
    hw_decoder_load (share of the hardware engine), preallocate (width, height of the largest image in pixels, 0 for
    unknown), device_memory_padding and host_memory_padding (bytes a thread, None for DALI's own).
    """

    size: tuple[int, int]
    batch_size: int
    threads: int
    depth: int
    device_id: int | None = None
    hw_decoder_load: float = 0.65
    preallocate: tuple[int, int] = (0, 0)
    device_memory_padding: int | None = None
    host_memory_padding: int | None = None

    def decoder_options(self) -> dict[str, Any]:
        """What the GPU decoder takes beside what parity asks for."""
        if self.device_id is None:
            return {}
        width, height = self.preallocate
        given = {"device_memory_padding": self.device_memory_padding, "host_memory_padding": self.host_memory_padding}
        return {
            "hw_decoder_load": self.hw_decoder_load,
            "preallocate_width_hint": width,
            "preallocate_height_hint": height,
            "affine": False,  # several ranks on one machine would pin their threads to the same processors
            **{name: value for name, value in given.items() if value is not None},
        }


def import_dali() -> ModuleType:
    """The package nvidia.dali. Raises LoaderError E-DEPENDENCY with what to install for this CUDA."""
    try:
        import nvidia.dali
        import nvidia.dali.fn
        import nvidia.dali.types
    except Exception as error:  # an OSError where one of its libraries is missing
        why = f"nvidia.dali cannot be imported ({type(error).__name__}: {error})"
        raise LoaderError("E-DEPENDENCY", why, fix=install_hint()) from None
    dali: ModuleType = nvidia.dali
    if tuple(int(part) for part in re.findall(r"\d+", dali.__version__)[:2]) < _OLDEST:
        why = f"nvidia.dali {dali.__version__} is too old: {'.'.join(map(str, _OLDEST))} or newer is needed"
        raise LoaderError("E-DEPENDENCY", why, fix=install_hint())
    return dali


def install_hint() -> str:
    """Which of DALI's packages fits: that of torch's CUDA, and of any for the CPU alone."""
    cuda = (torch.version.cuda or "13").split(".")[0]
    extra = "dali-cuda130" if int(cuda) >= 13 else "dali-cuda120"
    wheel = f"pip install 'penstock[{extra}]'"
    if torch.version.cuda is None:
        return f"{wheel} (dali-cuda120 for a driver of CUDA 12; either runs without a GPU)"
    return f"{wheel}, the nearest to torch's CUDA {torch.version.cuda}"


def dali_takes(header: JpegHeader, data: bytes) -> bool:
    """Whether DALI decodes a JPEG as the other decoders do, on every device: ordinary coding, grey or YCbCr.

    Three components without a JFIF marker are YCbCr by their numbers 1, 2, 3 or by Adobe's word; libjpeg guesses from
    these whether they are RGB, a GPU decoder does not.
    """
    if not header.common:
        return False
    if header.components == 1:
        return True
    adobe = _whole(data, header, _APP14, b"Adobe", 16)
    if adobe:
        return all(data[start + 15] == 1 for start in adobe)
    at = header.height_offset + 5  # the first component's number
    return bool(_whole(data, header, _APP0, b"JFIF\0", 18)) or data[at : at + 7 : 3] == b"\1\2\3"


def _whole(data: bytes, header: JpegHeader, marker: int, name: bytes, length: int) -> list[int]:
    """Where the segments of this kind begin that libjpeg heeds: it passes over shorter ones."""
    return [
        start
        for found, start, end in header.segments
        if found == marker and end - start >= length and data.startswith(name, start + 4)
    ]


class DaliGraph:
    """A built graph for JPEGs or for pixels; belongs to one thread. Outputs come in the order of what was fed.

    Raises LoaderError E-DEPENDENCY or E-MEM where DALI cannot run as the settings ask.
    """

    def __init__(self, settings: GraphSettings, *, coded: bool) -> None:
        self.coded, self._settings = coded, settings
        self._fed: deque[Any] = deque()  # what DALI reads without a copy, until its batch is out
        dali = import_dali()
        try:
            self._pipe: Any = self._built(dali)
            # DALI starts as many batches at the first call as it keeps under way; from then on one at each call.
            for _ in range(settings.depth):
                self._feed([self._blank()])
            self._pipe.schedule_run()
            while self._fed:
                self.take()
        except LoaderError:
            raise
        except Exception as error:
            raise _cannot_run(error, settings) from error

    def __len__(self) -> int:
        """Batches under way."""
        return len(self._fed)

    def _built(self, dali: ModuleType) -> Any:
        settings, types, fn = self._settings, dali.types, dali.fn
        on_gpu = settings.device_id is not None
        pipe = dali.Pipeline(
            batch_size=settings.batch_size,
            num_threads=settings.threads,
            device_id=settings.device_id,
            prefetch_queue_depth=settings.depth,
            exec_dynamic=True,  # its outputs are ours: none is overwritten while it is looked at
            seed=0,
        )
        with pipe:
            flips = fn.external_source(name="flips", ndim=0, dtype=types.INT32, no_copy=True)
            if self.coded:
                files = fn.external_source(name="data", ndim=1, dtype=types.UINT8, no_copy=True)
                anchors, shapes = (
                    fn.external_source(name=name, ndim=1, dtype=types.INT32, no_copy=True)
                    for name in ("anchors", "shapes")
                )
                images = fn.decoders.image_slice(
                    files,
                    anchors,
                    shapes,
                    device="mixed" if on_gpu else "cpu",
                    axis_names="HW",
                    output_type=types.RGB,
                    adjust_orientation=False,
                    jpeg_fancy_upsampling=True,
                    use_fast_idct=False,
                    **settings.decoder_options(),
                )
            else:
                images = fn.external_source(name="data", layout="HWC", ndim=3, dtype=types.UINT8, no_copy=True)
                images = images.gpu() if on_gpu else images
            height, width = settings.size
            images = fn.resize(
                images,
                resize_x=width,
                resize_y=height,
                interp_type=types.INTERP_LINEAR,
                antialias=True,
                subpixel_scale=False,
            )
            pipe.set_outputs(fn.flip(images, horizontal=flips))
        pipe.build()
        return pipe

    def _blank(self) -> CropTask:
        window = (0, 0, 8, 8)
        return CropTask(_BLANK_JPEG if self.coded else np.zeros((8, 8, 3), np.uint8), window, False)

    def feed(self, tasks: Sequence[CropTask]) -> None:
        """Start one batch of 1 to batch_size rows, all of this graph's kind. Raises LoaderError as take() does."""
        try:
            self._feed(tasks)
            self._pipe.schedule_run()
        except RuntimeError as error:
            raise _refused(error) from error

    def _feed(self, tasks: Sequence[CropTask]) -> None:
        data: list[Pixels] = [
            np.frombuffer(task.data, np.uint8) if isinstance(task.data, bytes) else task.data for task in tasks
        ]
        windows = np.array([task.window for task in tasks], np.int32)
        fed: dict[str, Any] = {"flips": np.array([task.flip for task in tasks], np.int32), "data": data}
        if self.coded:
            fed["anchors"] = np.ascontiguousarray(windows[:, [1, 0]])
            fed["shapes"] = np.ascontiguousarray(windows[:, [3, 2]])
        self._fed.append((tasks, fed))
        for name, arrays in fed.items():
            self._pipe.feed_input(name, arrays, layout="HWC" if name == "data" and not self.coded else None)

    def take(self) -> torch.Tensor:
        """The oldest batch under way, uint8 [rows, height, width, 3] on the graph's device, complete; waits for it.

        Raises LoaderError E-CORRUPT if DALI refused any row of it, E-MEM or E-WORKER where the device failed; the graph
        is of no more use then.
        """
        try:
            (images,) = self._pipe.outputs()  # complete: without a stream of ours DALI waits for the device
        except RuntimeError as error:
            raise _refused(error) from error
        self._fed.popleft()
        return torch.utils.dlpack.from_dlpack(images.as_tensor())

    def close(self) -> None:
        """Let go of DALI's threads and memory; batches that were taken stay."""
        self._pipe = None
        self._fed.clear()


def dali_words(error: Exception) -> str:
    """What DALI says, without the lines on where in the graph it happened."""
    text = " ".join(str(error).split())
    found = re.search(r"encountered: (.+?)(?: C\+\+ context| Stacktrace| Current pipeline|$)", text)
    return (found[1] if found else text).rstrip(" :")[:_SHOWN]


def _refused(error: Exception) -> LoaderError:
    """What a failure in the middle of a run comes to: the data's, unless DALI speaks of the machine."""
    words = dali_words(error)
    if re.search("bad_alloc|out of memory|allocat", words, re.IGNORECASE):
        return LoaderError("E-MEM", f"DALI: {words}")
    if re.search("cuda", words, re.IGNORECASE):
        return LoaderError("E-WORKER", f"DALI: {words}", fix="see `nvidia-smi` and the system's log for this GPU")
    return LoaderError("E-CORRUPT", f"DALI: {words}")


def _cannot_run(error: Exception, settings: GraphSettings) -> LoaderError:
    words = dali_words(error)
    if isinstance(error, MemoryError) or re.search("memory|alloc|resource temp", words, re.IGNORECASE):  # or no thread
        return LoaderError("E-MEM", f"DALI: {words}")
    what = "the CPU" if settings.device_id is None else f"GPU {settings.device_id}"
    about_driver = settings.device_id is not None and re.search(_NO_DRIVER, words, re.IGNORECASE)
    fix = f"see `nvidia-smi` for the driver's CUDA; {install_hint()}" if about_driver else install_hint()
    return LoaderError("E-DEPENDENCY", f"DALI cannot run on {what}: {words}", fix=fix)
