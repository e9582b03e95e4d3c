"""Choice between worker threads and worker processes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import Source, is_fetching
from penstock.loaders.make.batch_planner import BatchPlanner
from penstock.loaders.make.engine_contract import Engine
from penstock.loaders.make.layout import BatchLayout, Slot, image_layout
from penstock.loaders.make.native_rows import NativeRows, native_rows, plan_images
from penstock.loaders.make.own_tokenizer import OwnTokenizer
from penstock.loaders.make.own_transform import OwnTransform
from penstock.loaders.make.transform_step import DRAWS_IN_THREADS
from penstock.loaders.run.engine.process_engine import ProcessEngine, ProcessOptions, process_needs
from penstock.loaders.run.engine.slots import crops_bytes, share_batches, thread_needs
from penstock.loaders.run.engine.thread_engine import ThreadEngine
from penstock.loaders.run.engine.work_items import batch_row
from penstock.loaders.run.workers.launch import hides_main
from penstock.loaders.run.workers.needs import Needs
from penstock.loaders.system.machine import default_workers
from penstock.pipelines.messages.user_warnings import warn_user

_LOOKED_AT = 16  # images to check, spread over the data set
_LOCK_SHARE = 0.75  # of the time, at which threads rarely wait for the interpreter lock
_NEARLY_ALL = 0.75  # share that the native library must support: other images sometimes hold the interpreter lock


def open_engine(name: str, planner: BatchPlanner, options: ProcessOptions) -> Engine:
    """Return the engine of backend `name` for `options`.

    Raises ValueError for an engine of processes if the user's transform cannot be sent to them.
    """
    if options.has_processes and not (options.workers_are == "auto" and suits_threads(planner, options)):
        if options.start_method != "fork" and hides_main(planner.source) and (own := _needs_script(planner)):
            raise ValueError(
                f"the {own} cannot be sent to worker processes, because it is a lambda, an inner function, or defined "
                "in a script or a notebook: define it in a module, or pass workers_are='threads'"
            )
        return ProcessEngine(name, planner, options)
    if options.num_workers and any(own is not None and own.uses_global_state for own in planner.transforms):
        warn_user(DRAWS_IN_THREADS)
    return ThreadEngine(name, planner, options)


def _needs_script(planner: BatchPlanner) -> str:
    """Return the name of the first own function that a worker process cannot find; "" for none."""
    if any(transform is not None and transform.needs_script for transform in planner.transforms):
        return "transform"
    tokenizer = None if planner.text is None else planner.text.tokenizer
    return "tokenizer" if tokenizer is not None and tokenizer.needs_script else ""


def suits_threads(planner: BatchPlanner, options: ProcessOptions) -> bool:
    """Return whether threads are at least as fast as processes, or the only choice; False if processes were requested.

    Threads are the only choice for a transform that is defined in a script or a notebook. They are also suitable if the
    native library makes nearly all images, and for users' sources that serve encoded images, because decoders
    release the interpreter lock. Pixels are cropped and resized partly with the lock, so two threads reach half the
    images/s of two processes (2,400 and 4,500). A transform is timed: it may hold the lock if the calls of all workers
    fit in the time that they take for the images.
    """
    source = planner.source
    if options.start_method != "forkserver" or getattr(source, "holds_interpreter_lock", False):
        return False
    tokenizer = None if planner.text is None else planner.text.tokenizer
    own = [function for function in (*planner.transforms, tokenizer) if function is not None]
    if _needs_script(planner):
        return True
    native = native_rows(source, planner.pipeline, planner.decoder)
    count = min(_LOOKED_AT, len(source))
    samples = np.arange(count) * len(source) // count
    takes = native is not None and native.takes(samples) >= _NEARLY_ALL * count
    if own and not _lock_suffices(
        own, options.num_workers, partial(_time_image, planner, native if takes else None, samples)
    ):
        return False
    if takes:
        return True
    module = type(source).__module__
    if module == "__main__":  # a process would need a main guard in a script, and cannot import a notebook
        return True
    return not module.startswith("penstock.") and (options.num_workers == 1 or not _serves_pixels(source))


def _lock_suffices(own: Sequence[OwnTransform | OwnTokenizer], workers: int, time_image: Callable[[], float]) -> bool:
    """Return whether the calls of all workers fit in the time that they take for an image, one call after the other.

    time_image: returns the processor time of an image without its transforms, in seconds.
    """
    costs, locked = map(sum, zip(*(function.measure_lock() for function in own), strict=True))
    together = min(workers, default_workers())
    return not locked or (locked < math.inf and together * locked <= _LOCK_SHARE * (costs + time_image()))


def _time_image(planner: BatchPlanner, native: NativeRows | None, samples: npt.NDArray[np.int64]) -> float:
    """Return the processor time in which the library makes one of `samples`, in seconds.

    It is 0 without the library, and for a source that would have to fetch them.
    """
    if native is None or is_fetching(planner.source):
        return 0.0
    pipelines = [replace(each, crop="full") if each.crop == "none" else each for each in planner.pipelines]
    layout = image_layout(pipelines, len(samples))
    plan = plan_images(pipelines, planner.schedule.seed, 0, layout)
    slot = Slot(layout, np.empty(layout.num_bytes, np.uint8), np.zeros(len(samples), batch_row(layout.num_views)))
    started = time.thread_time()
    native.fill(samples, np.arange(len(samples)), plan, slot)
    return (time.thread_time() - started) / len(samples)


def _serves_pixels(source: Source) -> bool:
    try:
        return isinstance(source.read(0), np.ndarray)
    except Exception:  # reported with its sample when the stream reaches it
        return False


def needs_of(options: ProcessOptions, layout: BatchLayout) -> Needs:
    """Return the maximum needs of the engine for `options` and batches of `layout`."""
    if options.has_processes:
        return process_needs(options, layout)
    parts, ahead = share_batches(options.num_workers, options.prefetch, layout.batch_size)
    return thread_needs(ahead, layout, crops_bytes(layout, options.num_workers, parts))
