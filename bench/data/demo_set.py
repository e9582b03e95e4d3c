"""The demo set: a folder of JPEGs with the statistics of ImageNet photos, whose labels can be learned."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, NamedTuple

from penstock.bench.data.demo_photo import class_name, photo_bytes, require_pillow
from penstock.pipelines.errors import LoaderError

MANIFEST = "synth.json"
FORMAT = 1
"""Raise it when the same settings begin to give other bytes."""
SPLITS = ("train", "val")
CHUNK = 16
"""Photos per work item: 0.2 s, so that progress is smooth and an interrupt is quick."""


@dataclass(frozen=True, kw_only=True)
class SynthReport:
    """What lies in the folder, and how many files of it this call wrote; sizes in bytes."""

    folder: Path
    images: int
    validation: int
    classes: int
    num_written: int
    total_bytes: int

    @property
    def mean_bytes(self) -> float:
        """Mean file size in bytes."""
        return self.total_bytes / (self.images + self.validation)


class _Photo(NamedTuple):
    split: int
    label: int
    number: int

    def path(self, folder: Path) -> Path:
        return folder / SPLITS[self.split] / class_name(self.label) / f"{self.number:04d}.jpg"


def synthesise(
    folder: Path,
    *,
    images: int = 640,
    validation: int = 160,
    classes: int = 10,
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SynthReport:
    """Write FOLDER/train/CLASS/NNNN.jpg and FOLDER/val/CLASS/NNNN.jpg, or complete what an earlier call left.

    images, validation: number of photos of the two splits, spread evenly over the classes.
    workers: processes; None takes the CPUs this process may use, 0 works in this process.
    progress: called with (photos done, photos to write).
    The bytes of a file depend on seed, split, class and number only. A complete folder is left as it is.
    Raises ValueError for settings that cannot work; LoaderError E-MISUSE for a folder that holds something else,
    E-DEPENDENCY without Pillow, E-NOSPC, E-ACCESS, and E-WORKER if a worker died.
    """
    if not 1 <= classes <= 10_000:
        raise ValueError(f"classes is 1 to 10,000, not {classes}")
    if images < classes or (validation != 0 and validation < classes):
        raise ValueError(f"each class needs a photo: {images} + {validation} photos are too few for {classes} classes")
    if seed < 0 or (workers is not None and workers < 0):
        raise ValueError(f"seed and workers are not negative, not {seed}, {workers}")
    settings = {"format": FORMAT, "images": images, "validation": validation, "classes": classes, "seed": seed}
    folder = Path(folder)
    photos = [
        _Photo(split, place % classes, place // classes)
        for split, count in enumerate((images, validation))
        for place in range(count)
    ]
    try:
        _claim(folder, settings)
        missing = [photo for photo in photos if not _is_written(photo.path(folder))]
        if missing:
            _write_all(folder, seed, missing, _num_workers(workers, len(missing)), progress)
        total_bytes = sum(photo.path(folder).stat().st_size for photo in photos)
    except OSError as error:
        raise _as_loader_error(error, folder) from error
    return SynthReport(
        folder=folder,
        images=images,
        validation=validation,
        classes=classes,
        num_written=len(missing),
        total_bytes=total_bytes,
    )


def _claim(folder: Path, settings: dict[str, int]) -> None:
    """Make the folder ours, or make sure that it is: a manifest comes first, so that a killed run is recognised."""
    manifest = folder / MANIFEST
    fix = f"choose another folder, or remove {str(folder)!a} first"
    try:
        found = json.loads(manifest.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        unfinished = f".{MANIFEST}.tmp."  # of a run killed in its first moment, or of one that starts just now
        if folder.exists() and (
            not folder.is_dir() or any(not p.name.startswith(unfinished) for p in folder.iterdir())
        ):
            cause = f"the folder holds something else than a demo set (no {MANIFEST})"
            raise LoaderError("E-MISUSE", cause, fix=fix, path=str(folder)) from None
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        _write_atomically(manifest, (json.dumps(settings, indent=2) + "\n").encode())
        return
    except ValueError:
        found = None
    if found != settings:
        cause = f"the folder holds a demo set with other settings: {found}, not {settings}"
        raise LoaderError("E-MISUSE", cause, fix=fix, path=str(folder))


def _is_written(path: Path) -> bool:
    """Whether the file is whole: it is written under another name and renamed, so one that exists is. A power cut
    can leave the name without the bytes; hence the size."""
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def _num_workers(workers: int | None, num_photos: int) -> int:
    if workers is None:
        # sched_getaffinity is missing outside Linux.
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(workers, -(-num_photos // CHUNK))


def _write_all(
    folder: Path, seed: int, missing: list[_Photo], workers: int, progress: Callable[[int, int], None] | None
) -> None:
    require_pillow()
    for parent in {photo.path(folder).parent for photo in missing}:
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent)
    write = partial(_write_chunk, folder, seed)
    chunks = [missing[start : start + CHUNK] for start in range(0, len(missing), CHUNK)]
    done = 0
    with closing(_counts(write, chunks, workers)) as counts:
        for count in counts:
            done += count
            if progress is not None:
                progress(done, len(missing))


def _counts(
    write: Callable[[list[_Photo]], int], chunks: list[list[_Photo]], workers: int
) -> Generator[int, None, None]:
    if workers <= 1:
        yield from map(write, chunks)
        return
    # spawn: the caller may hold threads and locks (progress bar, torch) which a fork would copy in mid-air.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start_worker)
    try:
        for future in as_completed([pool.submit(write, chunk) for chunk in chunks]):
            yield future.result()
    except BrokenProcessPool as error:
        raise LoaderError("E-WORKER", f"a process that writes the demo set died: {error}", fix="run again") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _write_chunk(folder: Path, seed: int, photos: list[_Photo]) -> int:
    for photo in photos:
        _write_atomically(photo.path(folder), photo_bytes(seed, *photo))
    return len(photos)


_unfinished: str | None = None


def _write_atomically(path: Path, data: bytes) -> None:
    global _unfinished
    temporary = path.with_name(f".{path.name}.tmp.{os.getpid()}")
    _unfinished = str(temporary)
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        _unfinished = None


def _sweep(folder: Path) -> None:
    """Remove what killed runs left; files of a run that is still alive stay."""
    for path in folder.glob(".*.tmp.*"):
        pid = path.name.rpartition(".")[2]
        try:
            os.kill(int(pid), 0)
        except (ProcessLookupError, ValueError, OverflowError):
            path.unlink(missing_ok=True)
        except PermissionError:  # alive, and another user's
            continue


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends the pool in good order
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    # A pool worker whose parent was killed waits for work for ever: it holds both ends of its own queue.
    parent = parent_process()
    if parent is not None:
        parent.join()
        _leave()


def _leave(*_: Any) -> None:
    if _unfinished is not None:
        with suppress(OSError):
            os.unlink(_unfinished)
    os._exit(1)


def _as_loader_error(error: OSError, folder: Path) -> LoaderError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return LoaderError("E-NOSPC", str(error), path=str(folder))
    return LoaderError("E-ACCESS", str(error), fix="choose a folder that can be written", path=str(folder))
