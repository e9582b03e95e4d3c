"""Settings of an engine over any source, for tests that drive an engine without a loader."""

from __future__ import annotations

from typing import Any

from penstock.loaders.make.batch_planner import BatchPlanner
from penstock.loaders.order.schedule import Schedule
from penstock.pipelines import imagenet_train


def make_planner(source: Any, schedule: dict[str, Any] | None = None, **changes: Any) -> BatchPlanner:
    """Return settings for shuffled batches of 4 crops of 16x16, changed by the fields of `schedule` and `changes`."""
    order = {"n": len(source), "batch_size": 4, "seed": 7, "rank": 0, "world_size": 1, "shuffle": True}
    pipelines = (changes.pop("pipeline", imagenet_train(16)),)
    defaults = {"pipelines": pipelines, "decoder": "auto", "substitute": False, "evaluation": False}
    whole = Schedule(**{**order, "drop_last": True, **(schedule or {})})
    return BatchPlanner(source=source, schedule=whole, **{**defaults, **changes})
