"""What the campaign of kills calls a fault."""

from __future__ import annotations

from typing import Any

import pytest
from kill_campaign import Trial, judge

KILLED = {"strike": "SIGKILL", "victim": "group", "code": -9}


def trial(**found: Any) -> Trial:
    about = {"program": "iterate torch", "strike": "SIGTERM", "victim": "main", "code": 143}
    return Trial(0, **{**about, "moment": "later", **found})


@pytest.mark.parametrize(
    "found",
    [
        {"code": None},
        {"processor_s": 6.0},
        {"processes": ["a worker"]},
        {"files": ["sem.x"]},
        {"swept": ["sem.x"]},
        {**KILLED, "victim": "worker", "swept": ["sem.x"]},
        {**KILLED, "swept": ["sem.x"], "files": ["sem.x"]},
        {"errors": "Traceback (most recent call last):"},
        {"errors": "There appear to be 7 leaked semaphore objects"},
        {"code": 1},
        {"code": 5},
        {"program": "drop-in default", "code": 1, "errors": "Traceback ... AssertionError"},
    ],
)
def test_it_is_a_fault(found: dict[str, Any]) -> None:
    assert len(judge(trial(**found))) == 1


@pytest.mark.parametrize(
    "found",
    [
        {},
        {**KILLED, "swept": ["sem.x"]},
        {**KILLED, "victim": "worker", "code": 5, "errors": "LoaderError[E-WORKER] ..."},
        {"program": "drop-in default", "strike": "SIGINT", "code": -2, "errors": "Traceback ... KeyboardInterrupt"},
    ],
)
def test_it_is_none(found: dict[str, Any]) -> None:
    assert judge(trial(**found)) == []
