"""The demo set: a folder of JPEGs with the statistics of ImageNet photos and learnable labels."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from penstock.bench.probe.data.demo_photo import class_name, photo_bytes
from penstock.loaders.run.workers.pool import map_in_workers
from penstock.loaders.system.durable_file import random_name, remove_left_folders
from penstock.loaders.system.file_read import open_regular
from penstock.loaders.system.machine import available_cpus
from penstock.pipelines.errors import LoaderError

MANIFEST = "synth.json"
FORMAT = 2  # increment when the same settings give different bytes
SPLITS = ("train", "val")
CHUNK = 16  # photos per work item: 0.2 s, for smooth progress and quick interrupts


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
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Write FOLDER/train/CLASS/NNNN.jpg and FOLDER/val/CLASS/NNNN.jpg unless they exist; return their size in bytes.

    Files are written to FOLDER.tmp.RANDOM, which is renamed at the end, so that FOLDER is always complete.
    images, validation: number of photos of the two splits, spread evenly over the classes.
    workers: processes; None: one per CPU this process may use; 0 or 1: work in this process.
    progress: called with (photos done, photos to write).
    The bytes of a file depend only on seed, split, class and number.
    Raises ValueError for settings that cannot work; LoaderError E-MISUSE for a folder with other contents,
    E-NOSPC, E-ACCESS, and E-WORKER if a worker died.
    """
    if not 1 <= classes <= 10_000:
        raise ValueError(f"classes must be from 1 to 10,000, got {classes}")
    if images < classes or (validation != 0 and validation < classes):
        raise ValueError(f"each class needs a photo: {images} + {validation} photos are too few for {classes} classes")
    settings = {"format": FORMAT, "images": images, "validation": validation, "classes": classes, "seed": seed}
    folder = Path(folder)
    photos = [
        _Photo(split, place % classes, place // classes)
        for split, count in enumerate((images, validation))
        for place in range(count)
    ]
    try:
        if not _is_complete(folder, settings, photos):
            with _rename_when_done(folder.resolve()) as unfinished:
                _write_photos(unfinished, seed, photos, workers, progress)
                (unfinished / MANIFEST).write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
        return sum(photo.path(folder).stat().st_size for photo in photos)
    except OSError as error:
        raise _make_loader_error(error, folder) from error


def _is_complete(folder: Path, settings: dict[str, int], photos: list[_Photo]) -> bool:
    """Return whether the demo set exists; False if there is nothing. Raises LoaderError for other contents."""
    cause = ""
    try:
        with open(open_regular(os.fsencode(folder / MANIFEST)), "rb") as file:
            found = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return False
        cause = f"the folder contains something other than a demo set (no {MANIFEST})"
    except ValueError:
        cause = f"{MANIFEST} in the folder cannot be read"
    else:
        if found != settings:
            cause = f"the folder contains a demo set with other settings: {found}, not {settings}"
        elif not all(path.is_file() and path.stat().st_size for path in (photo.path(folder) for photo in photos)):
            cause = "photos of the demo set in the folder are missing"
    if cause:
        fix = f"choose another folder, or remove {str(folder)!a} first"
        raise LoaderError("E-MISUSE", cause, fix=fix, path=str(folder))
    return True


@contextmanager
def _rename_when_done(folder: Path) -> Iterator[Path]:
    """Yield a new folder that is renamed to `folder` on success; remove leftovers of killed runs after an hour."""
    remove_left_folders(os.fsencode(folder.parent), os.fsencode(folder.name))
    unfinished = Path(os.fsdecode(random_name(os.fsencode(folder))))
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        unfinished.rename(folder)  # which may exist and be empty
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _write_photos(
    folder: Path, seed: int, photos: list[_Photo], workers: int | None, progress: Callable[[int, int], None]
) -> None:
    for parent in {photo.path(folder).parent for photo in photos}:
        parent.mkdir(parents=True)
    chunks = [range(start, min(start + CHUNK, len(photos))) for start in range(0, len(photos), CHUNK)]
    workers = min(available_cpus() if workers is None else workers, len(chunks))
    work = partial(_write_chunk, folder, seed, photos)
    done = 0
    with closing(map_in_workers(work, iter(chunks), workers if workers > 1 else 0)) as counts:
        for count in counts:
            done += count
            os.utime(folder)  # shows that this run has not been killed
            progress(done, len(photos))


def _write_chunk(
    folder: Path, seed: int, photos: list[_Photo], places: range, working_on: Callable[[int], None]
) -> int:
    for place in places:
        working_on(place)
        data = photo_bytes(seed, *photos[place])
        try:
            photos[place].path(folder).write_bytes(data)
        except OSError as error:  # in a worker process an OSError would count as a bug of the work
            raise _make_loader_error(error, folder) from error
    return len(places)


def _make_loader_error(error: OSError, folder: Path) -> LoaderError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return LoaderError("E-NOSPC", error.strerror or str(error), path=str(folder))
    cause = f"the folder cannot be written: {error.strerror or error}"
    return LoaderError("E-ACCESS", cause, fix="choose a writable folder", path=str(folder))
