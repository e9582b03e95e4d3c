"""Makes the next batches of a loader once more, for a picture, without moving the loader."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from penstock.loaders.make.engine_contract import Engine
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.schedule import Schedule
from penstock.loaders.run.feed.batch_feed import DeviceBatch, DeviceFeed, Stage


def look_ahead(
    open_alone: Callable[[Schedule], tuple[Engine, DeviceFeed]], schedule: Schedule, cursor: Cursor
) -> Generator[tuple[Cursor, DeviceBatch, Sequence[Stage]], None, None]:
    """Yield the batches from `cursor` to the end of its epoch, with their places and batch stages.

    open_alone: makes an engine with its own slots, which works in this thread, and its feed.
    """
    engine, feed = open_alone(schedule)
    try:
        epoch, cursor = cursor.epoch, schedule.resume_at(cursor)
        engine.seek(cursor)
        while cursor.epoch == epoch:
            yield cursor, feed.next(), feed.stages
            cursor = schedule.after(cursor)
    finally:
        engine.close()
        feed.close()
