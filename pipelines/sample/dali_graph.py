"""The sample stage as a DALI graph that follows our plan: decode a window, resize it antialiased, flip it.

Parity with the other decoders: EXIF is ignored (images that EXIF turns are decoded elsewhere), chroma upsampling is
libjpeg's ("fancy"), the DCT is the accurate one, and the resize of integer windows is antialiased, linear or cubic. On
a CPU the decoded pixels are bit-exact, except for windows of one column (which are decoded elsewhere too). The resize
differs from torch's by one level in rounding, and at the border of the crop: DALI repeats the outermost pixels, torch
omits them, which changes one in several thousand values by a few levels. The cubic one also differs where a pass leaves
the range of levels: torch clips after each pass, DALI once.
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
from penstock.pipelines.image_types import INTERPOLATIONS, Pixels, Window
from penstock.pipelines.jpeg.header import JpegHeader

_OLDEST = (2, 2)  # image_slice of older versions has no option for EXIF
_MESSAGE_CHARACTERS = 160  # of DALI's message in an error line
_NO_DRIVER = "cuda|driver|libnvcuvid|nvml|device"
_APP0, _APP14 = 0xE0, 0xEE


class CropTask(NamedTuple):
    """Input of DALI for one row of a batch.

    Attributes:
        data: a JPEG that contains the window, bytes or uint8 [bytes]; or the window's pixels, contiguous uint8 [height,
            width, 3].
        window: the crop in `data`; for pixels, all of it.
        flip: whether to mirror the crop left to right.
        size: height and width of the resulting image, in pixels, the same in a batch; None for the graph's size.
        interpolation: filter of the resize, the number of "bilinear" or "bicubic" in INTERPOLATIONS.
    """

    data: bytes | Pixels
    window: Window
    flip: bool
    size: tuple[int, int] | None = None
    interpolation: int = 0

    @property
    def coded(self) -> bool:
        """Whether `data` is a JPEG."""
        return isinstance(self.data, bytes) or self.data.ndim == 1


@dataclass(frozen=True, kw_only=True)
class GraphSettings:
    """Configure a graph; the fields after `whole` are options of the GPU decoder.

    Attributes:
        size: (height, width) of the resulting images, in pixels, unless their tasks specify another size.
        batch_size: largest number of rows in a batch.
        threads: CPU threads of the graph.
        depth: number of batches in flight.
        device_id: number of the GPU; None for the CPU.
        whole: decode whole images and crop the windows afterwards, instead of decoding only the windows.
        hw_decoder_load: share of the images that the hardware decoder gets.
        preallocate: (width, height) of the largest image, in pixels; 0 if unknown.
        device_memory_padding: bytes of device memory for each thread; None for DALI's default.
        host_memory_padding: bytes of page-locked memory for each thread; None for DALI's default.
    """

    size: tuple[int, int]
    batch_size: int
    threads: int
    depth: int
    device_id: int | None = None
    whole: bool = False
    hw_decoder_load: float = 0.65
    preallocate: tuple[int, int] = (0, 0)
    device_memory_padding: int | None = None
    host_memory_padding: int | None = None

    def decoder_options(self) -> dict[str, Any]:
        """Return the options of the GPU decoder that do not affect its pixels."""
        if self.device_id is None:
            return {}
        width, height = self.preallocate
        given = {"device_memory_padding": self.device_memory_padding, "host_memory_padding": self.host_memory_padding}
        return {
            "hw_decoder_load": self.hw_decoder_load,
            "preallocate_width_hint": width,
            "preallocate_height_hint": height,
            "affine": False,  # several ranks on one machine would pin their threads to the same CPUs
            **{name: value for name, value in given.items() if value is not None},
        }


def import_dali() -> ModuleType:
    """Import nvidia.dali. Raises LoaderError E-DEPENDENCY, with an install command, if it is missing or too old."""
    try:
        import nvidia.dali
        import nvidia.dali.fn
        import nvidia.dali.types
    except Exception as error:  # an OSError if one of its libraries is missing
        why = f"nvidia.dali cannot be imported ({type(error).__name__}: {error})"
        raise LoaderError("E-DEPENDENCY", why, fix=install_hint()) from None
    dali: ModuleType = nvidia.dali
    if tuple(int(part) for part in re.findall(r"\d+", dali.__version__)[:2]) < _OLDEST:
        why = f"nvidia.dali {dali.__version__} is too old: {'.'.join(map(str, _OLDEST))} or newer is needed"
        raise LoaderError("E-DEPENDENCY", why, fix=install_hint())
    return dali


def install_hint() -> str:
    """Return the install command of the DALI package that matches torch's CUDA; a torch without CUDA can use either."""
    cuda = (torch.version.cuda or "13").split(".")[0]
    extra = "dali-cuda130" if int(cuda) >= 13 else "dali-cuda120"
    wheel = f"pip install 'nvidia-{extra}>=2.2'"
    if torch.version.cuda is None:
        return f"{wheel} (dali-cuda120 for a driver of CUDA 12; either runs without a GPU)"
    return f"{wheel}, the nearest to torch's CUDA {torch.version.cuda}"


def dali_can_decode(header: JpegHeader, data: bytes) -> bool:
    """Return whether DALI decodes a JPEG like the other decoders on every device: an ordinary one, grey or YCbCr.

    Three components without a JFIF marker are YCbCr if their numbers are 1, 2, 3 or Adobe's marker declares it. libjpeg
    uses these to detect RGB; a GPU decoder does not.
    """
    if not header.ordinary:
        return False
    if header.components == 1:
        return True
    adobe = _segment_starts(data, header, _APP14, b"Adobe", 16)
    if adobe:
        return all(data[start + 15] == 1 for start in adobe)
    at = header.height_offset + 5  # the first component's number
    return bool(_segment_starts(data, header, _APP0, b"JFIF\0", 18)) or data[at : at + 7 : 3] == b"\1\2\3"


def _segment_starts(data: bytes, header: JpegHeader, marker: int, name: bytes, length: int) -> list[int]:
    """Return where segments named `name` of at least `length` bytes begin; libjpeg ignores shorter ones."""
    return [
        start
        for found, start, end in header.segments
        if found == marker and end - start >= length and data.startswith(name, start + 4)
    ]


class DaliGraph:
    """Run a DALI graph over batches of JPEGs (`coded`) or of pixels; results keep the order of the batches fed.

    An instance belongs to one thread; len() is the number of batches in flight. The constructor raises LoaderError
    E-DEPENDENCY or E-MEM if DALI cannot run with these settings.

    Attributes:
        coded: whether tasks contain JPEGs instead of pixels.
    """

    def __init__(self, settings: GraphSettings, *, coded: bool) -> None:
        self.coded, self._settings = coded, settings
        self._fed: deque[Any] = deque()  # memory that DALI reads without a copy, kept until its batch is complete
        dali = import_dali()
        known = {"bilinear": dali.types.INTERP_LINEAR, "bicubic": dali.types.INTERP_CUBIC}
        self._filters = np.array([int(known.get(name, -1)) for name in INTERPOLATIONS], np.int32)
        try:
            self._pipe: Any = self._built(dali)
            # DALI starts `depth` batches at the first call and one at each later call: the first ones are warm-up.
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
        return len(self._fed)

    def _built(self, dali: ModuleType) -> Any:
        settings, types, fn = self._settings, dali.types, dali.fn
        on_gpu = settings.device_id is not None
        pipe = dali.Pipeline(
            batch_size=settings.batch_size,
            num_threads=settings.threads,
            device_id=settings.device_id,
            prefetch_queue_depth=settings.depth,
            exec_dynamic=True,  # outputs belong to the caller: DALI does not overwrite them while they are in use
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
                options = {
                    "device": "mixed" if on_gpu else "cpu",
                    "output_type": types.RGB,
                    "adjust_orientation": False,
                    "jpeg_fancy_upsampling": True,
                    "use_fast_idct": False,
                    **settings.decoder_options(),
                }
                if settings.whole:
                    images = fn.slice(fn.decoders.image(files, **options), anchors, shapes, axis_names="HW")
                else:
                    images = fn.decoders.image_slice(files, anchors, shapes, axis_names="HW", **options)
            else:
                images = fn.external_source(name="data", layout="HWC", ndim=3, dtype=types.UINT8, no_copy=True)
                images = images.gpu() if on_gpu else images
            height, width = (
                fn.external_source(name=name, ndim=0, dtype=types.FLOAT, no_copy=True) for name in ("height", "width")
            )
            filters = fn.external_source(name="filters", ndim=0, dtype=types.INT32, no_copy=True)
            images = fn.resize(
                images,
                resize_x=width,
                resize_y=height,
                interp_type=fn.reinterpret(filters, dtype=types.INTERP_TYPE),
                antialias=True,
                subpixel_scale=False,
            )
            pipe.set_outputs(fn.flip(images, horizontal=flips))
        pipe.build()
        return pipe

    def _blank(self) -> CropTask:
        import simplejpeg

        pixels = np.zeros((8, 8, 3), np.uint8)
        return CropTask(simplejpeg.encode_jpeg(pixels) if self.coded else pixels, (0, 0, 8, 8), False)

    def feed(self, tasks: Sequence[CropTask]) -> None:
        """Start one batch of 1 to batch_size rows, all JPEGs or all pixels; raises LoaderError as take() does."""
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
        fed["filters"] = self._filters[[task.interpolation for task in tasks]]
        for side, name in enumerate(("height", "width")):
            fed[name] = np.array([(task.size or self._settings.size)[side] for task in tasks], np.float32)
        if self.coded:
            fed["anchors"] = np.ascontiguousarray(windows[:, [1, 0]])
            fed["shapes"] = np.ascontiguousarray(windows[:, [3, 2]])
        self._fed.append((tasks, fed))
        for name, arrays in fed.items():
            self._pipe.feed_input(name, arrays, layout="HWC" if name == "data" and not self.coded else None)

    def take(self) -> torch.Tensor:
        """Wait for the oldest batch in flight and return it: uint8 [rows, height, width, 3] on the graph's device.

        Raises LoaderError E-CORRUPT if DALI rejected any of its rows, E-MEM or E-WORKER if the device failed; the graph
        cannot be used after that.
        """
        try:
            (images,) = self._pipe.outputs()  # complete: without a stream argument DALI waits for the device
        except RuntimeError as error:
            raise _refused(error) from error
        self._fed.popleft()
        whole = images.as_tensor()
        if self._settings.device_id is None:
            return torch.utils.dlpack.from_dlpack(whole)
        # -1: do not wait. torch would pass this thread's current stream, which is the consumer's, and DALI would make
        # it wait for the stream that decodes the next batch.
        return torch.utils.dlpack.from_dlpack(whole.__dlpack__(stream=-1))

    def close(self) -> None:
        """Release DALI's threads and memory; batches already taken stay valid."""
        self._pipe = None
        self._fed.clear()


def dali_message(error: Exception) -> str:
    """Return the message of DALI's error without the lines about the operator's place in the graph."""
    text = " ".join(str(error).split())
    found = re.search(r"encountered: (.+?)(?: C\+\+ context| Stacktrace| Current pipeline|$)", text)
    return (found[1] if found else text).rstrip(" :")[:_MESSAGE_CHARACTERS]


def _refused(error: Exception) -> LoaderError:
    """Translate a failure during a run: the data caused it unless DALI's message is about the machine."""
    words = dali_message(error)
    if re.search("bad_alloc|out of memory|allocat", words, re.IGNORECASE):
        return LoaderError("E-MEM", f"DALI: {words}")
    if re.search("cuda", words, re.IGNORECASE):
        return LoaderError("E-WORKER", f"DALI: {words}", fix="see `nvidia-smi` and the system's log for this GPU")
    return LoaderError("E-CORRUPT", f"DALI: {words}")


def _cannot_run(error: Exception, settings: GraphSettings) -> LoaderError:
    words = dali_message(error)
    if isinstance(error, MemoryError) or re.search("memory|alloc|resource temp", words, re.IGNORECASE):  # or no thread
        return LoaderError("E-MEM", f"DALI: {words}")
    what = "the CPU" if settings.device_id is None else f"GPU {settings.device_id}"
    about_driver = settings.device_id is not None and re.search(_NO_DRIVER, words, re.IGNORECASE)
    fix = f"see `nvidia-smi` for the driver's CUDA; {install_hint()}" if about_driver else install_hint()
    return LoaderError("E-DEPENDENCY", f"DALI cannot run on {what}: {words}", fix=fix)
