"""Test, in a separate process, of DALI's ways to decode a window on this machine, with a saved result."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import simplejpeg
import torch

from penstock.loaders.dali.dali_versions import codec_version, driver_version, has_right_edges, versions
from penstock.loaders.system.json_file import decode_json, write_json
from penstock.loaders.system.saved_columns import cache_folder
from penstock.pipelines.errors import EXIT_DATA, EXIT_OK, EXIT_RESOURCE, LoaderError
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.sample.dali_graph import CropTask, DaliGraph, GraphSettings
from penstock.pipelines.sample.dali_reference import DaliReference, Distance, distance
from penstock.pipelines.spec import ImagePipeline

# How an image is decoded: DALI decodes only the window, or the whole image; or Penstock decodes on the CPU.
REGIONS, WHOLE, OURS = "regions", "whole", "ours"
_INSTEAD = {WHOLE: "whole images are decoded and cut there", OURS: "Penstock decodes on the CPU instead"}
# Reported to nvImageCodec in August 2026: H100 and B200 crash, A100 fails; version 0.8 works.
CRASHING_CODEC, DALI_OF_EARLIER_CODEC = "0.9.0", "2.2.0"
_SIZES = ((8, 8), (17, 33), (1, 60), (60, 2), (61, 83), (130, 40), (375, 500), (900, 1200))
_SAMPLINGS = ("444", "422", "420", "440", "411", "GRAY")
# A wrong place, colour or image exceeds these limits; another upsampling does not. In stripes it does: there only edges
# are compared, and wrong edges differ by 48 levels more.
_SMOOTH_LIMIT, _STRIPES_LIMIT = Distance(6.0, 64.0, 255.0), Distance(255.0, 255.0, 12.0)
_SIZE = 64  # of the generated images, in pixels
_BATCH, _ROUNDS, _TIMEOUT_S = 16, 3, 300.0
_STOPPED = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP}  # signals from others
_COMMAND = (sys.executable, "-m", "penstock.loaders.dali.dali_probe")
_FILE = "dali-decoders.json"
_WRONG_EDGES = "nvJPEG before 13.2 decodes the edges of regions wrongly"
_NEWER_NVJPEG = "use nvJPEG 13.2 or newer, which is CUDA 13.3's (see LD_LIBRARY_PATH), or pass decode='whole'"


class Verdict(NamedTuple):
    """The way of decoding that works.

    Attributes:
        way: the way.
        why: why the previous ways do not work; "" if the first one works.
        was_tried: whether it was tried; if not, `why` is the reason.
    """

    way: str
    why: str = ""
    was_tried: bool = True


def made_tasks() -> list[CropTask]:
    """Return windows of smooth JPEGs of every sampling, including tiny and extreme sizes; always the same."""
    draw, tasks = np.random.default_rng(0), []
    for height, width in _SIZES:
        rows, columns = np.linspace(0, 5, height)[:, None, None], np.linspace(0, 5, width)[None, :, None]
        for sampling in _SAMPLINGS:
            grey = sampling == "GRAY"
            phase = draw.uniform(0, 6, 1 if grey else 3)
            pixels = (np.sin(rows + phase) * 60 + np.cos(columns * 2 - phase) * 60 + 128).astype(np.uint8)
            kind = ("GRAY",) if grey else ("RGB", sampling)
            data = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), 90, *kind)
            for _ in range(3):
                w, h = int(draw.integers(2, width + 1)), int(draw.integers(1, height + 1))
                x, y = int(draw.integers(0, width - w + 1)), int(draw.integers(0, height - h + 1))
                tasks.append(CropTask(data, (x, y, w, h), bool(draw.integers(2))))
    return tasks


def striped_tasks() -> list[CropTask]:
    """Return windows of JPEGs with chroma that changes at every chroma sample, in the size of the graph's images.

    Such chroma differs at the edge of a window if it is interpolated without the sample beyond the edge.
    """
    magenta, green, tasks = np.array([226, 54, 252]), np.array([30, 202, 4]), []  # equal luma, maximum distance
    for sampling, axes in (("422", (1,)), ("420", (0, 1)), ("440", (0,))):
        for axis in axes:
            stripes = np.indices((_SIZE + 48, _SIZE + 48))[axis, ..., None] // 2 % 2
            pixels = np.where(stripes, magenta, green).astype(np.uint8)
            data = simplejpeg.encode_jpeg(pixels, 100, "RGB", sampling)
            tasks += [CropTask(data, (x, y, _SIZE, _SIZE), False) for x, y in ((16, 16), (18, 22))]
    return tasks


def wrong_images(way: str, device_id: int | None) -> str:
    """Return what is wrong with DALI's decoding of the generated images, "" for nothing. Raises LoaderError."""
    pipeline = ImagePipeline(size=(_SIZE, _SIZE))
    settings = GraphSettings(
        size=pipeline.output_size, batch_size=_BATCH, threads=2, depth=2, device_id=device_id, whole=way == WHOLE
    )
    graph, reference = DaliGraph(settings, coded=True), DaliReference(pipeline)
    smooth, striped = made_tasks(), striped_tasks()
    tasks, limits = [*smooth, *striped], [_SMOOTH_LIMIT] * len(smooth) + [_STRIPES_LIMIT] * len(striped)
    expected = [reference.expected(task) for task in tasks]
    for start in [*range(0, len(tasks), _BATCH)] * _ROUNDS:
        graph.feed(tasks[start : start + _BATCH])
        for row, image in enumerate(graph.take().cpu().numpy()):
            ours, task = expected[start + row], tasks[start + row]
            assert ours is not None
            if not (far := distance(image, ours)).within(limits[start + row]):
                return f"an image is {far}, window {task.window}"
    graph.close()
    return ""


def main(arguments: Sequence[str]) -> int:
    """Run wrong_images for `arguments`, (way, number of the GPU or ""), and print its result."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # it may crash
    try:
        wrong = wrong_images(arguments[0], int(arguments[1]) if arguments[1] else None)
    except LoaderError as error:
        if error.exit_code == EXIT_RESOURCE:  # DALI does not run, or there is not enough memory
            print(error)
            return EXIT_RESOURCE
        wrong = error.cause
    except RuntimeError as error:  # from torch, which also uses GPU memory
        if "out of memory" not in str(error):
            raise
        print(LoaderError("E-MEM", f"torch: {error}"))
        return EXIT_RESOURCE
    print(wrong)
    return EXIT_DATA if wrong else EXIT_OK


def try_way(way: str, device: torch.device) -> tuple[str, bool]:
    """Return what is wrong with a way of decoding on `device` ("" for nothing), and whether DALI is the cause.

    Raises LoaderError E-DEPENDENCY or E-MEM if DALI does not run.
    """
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    number = str(device.index or 0) if device.type == "cuda" else ""
    run = {"env": {**os.environ, "PYTHONPATH": path}, "cwd": "/", "timeout": _TIMEOUT_S}
    try:
        done = subprocess.run((*_COMMAND, way, number), capture_output=True, text=True, check=False, **run)  # type: ignore[call-overload]
    except subprocess.TimeoutExpired:
        return f"no answer for {_TIMEOUT_S:.0f} s", False
    output = (done.stdout.strip() or done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    if done.returncode == EXIT_RESOURCE:
        raise LoaderError(output)
    if done.returncode < 0:
        return f"a process that tries it is ended by {signal.Signals(-done.returncode).name}", (
            done.returncode not in _STOPPED
        )
    return (output if done.returncode else ""), done.returncode in (EXIT_OK, EXIT_DATA)


def working_way(device: torch.device, *, again: bool = False) -> Verdict:
    """Return the way of decoding that works on `device`, from the saved result for these versions or from a test.

    again: test in any case. On a CPU, raises the LoaderErrors of try_way; on a GPU, whole images are then decoded.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    key = f"{versions()} on {name}, driver {driver_version()}"
    known = {**_kept(), **_found}
    if key in known and not again:
        return known[key]
    reasons, lasting, was_tried = [], True, True
    if device.type == "cuda" and not has_right_edges():
        reasons = [_WRONG_EDGES]
    for way in (REGIONS, WHOLE)[len(reasons) :]:
        try:
            wrong, own_fault = try_way(way, device)
        except LoaderError as error:
            if device.type != "cuda":
                raise
            # The result is unknown: in EXCLUSIVE_PROCESS mode and on a full GPU a second process cannot get a context.
            # If DALI does not run in this process either, its first batch raises the error.
            way, lasting, was_tried = WHOLE, False, False
            reasons.append(f"a separate process cannot use the GPU: {error.cause}")
            break
        lasting = lasting and own_fault
        if not wrong:
            break
        reasons.append(wrong)
    else:
        way = OURS
    verdict = Verdict(way, "; whole images too: ".join(reasons), was_tried)
    _found[key] = verdict
    if lasting:
        _keep({**_kept(), key: verdict})
    return verdict


def describe_verdict(verdict: Verdict) -> tuple[str, str]:
    """Return the problem with its workaround, and the fix."""
    what = "decodes regions wrongly here" if verdict.was_tried else "could not be tried here"
    problem = f"{versions()} {what} ({verdict.why}): {_INSTEAD[verdict.way]}"
    if not verdict.was_tried:
        way = REGIONS if has_right_edges() else WHOLE
        return problem, f"free memory on the GPU, set its compute mode to DEFAULT, or pass decode={way!r}"
    if codec_version().startswith(CRASHING_CODEC):
        return problem, f"use nvidia-dali-cuda130=={DALI_OF_EARLIER_CODEC} (or -cuda120), with nvImageCodec 0.8"
    return problem, "use another version of DALI" if has_right_edges() else _NEWER_NVJPEG


def warn_of_edges() -> None:
    """Warn if regions are requested and this nvJPEG decodes their edges wrongly."""
    if not has_right_edges():
        warn_user(f"{versions()}: {_WRONG_EDGES}; {_NEWER_NVJPEG}", RuntimeWarning)


_warned: set[Verdict] = set()


def chosen_way(device: torch.device) -> str:
    """Return the way of decoding that works on `device`, and warn once if it is not the first."""
    verdict = working_way(device)
    if verdict.why and verdict not in _warned:
        _warned.add(verdict)
        warn_user("; ".join(describe_verdict(verdict)), RuntimeWarning)
    return verdict.way


def _file() -> Path | None:
    folder = cache_folder()
    return Path(os.fsdecode(folder)) / _FILE if folder is not None else None


_found: dict[str, Verdict] = {}  # by this process, which may not have a folder to save it in


def _kept() -> dict[str, Verdict]:
    try:
        file = _file()
        kept = decode_json(file.read_bytes(), dict[str, tuple[str, str]]) if file is not None else {}
    except (OSError, ValueError):
        kept = {}
    return {key: Verdict(*fields) for key, fields in kept.items() if fields[0] in (REGIONS, WHOLE, OURS)}


def _keep(verdicts: dict[str, Verdict]) -> None:
    file = _file()
    if file is not None:
        with contextlib.suppress(OSError):
            write_json(file, {key: (verdict.way, verdict.why) for key, verdict in verdicts.items()})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
