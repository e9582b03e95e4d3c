"""Warnings show the user's line, however deep in the package their cause is."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.loaders import create_loader, open_source
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.pipelines import imagenet_train
from penstock.pipelines.messages.user_warnings import collect_warnings, warn_user


def test_a_warning_shows_the_line_of_the_caller(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    for name in ("cat/1.jpg", "stray.jpg"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    for use in (
        ImageFolder,
        open_source,
        lambda path: create_loader(path, batch_size=1, pipeline=imagenet_train(8), workers=0).close(),
    ):
        with pytest.warns(
            UserWarning, match="left out: 1 image next to class folders .'stray.jpg'.; move them"
        ) as caught:
            use(tmp_path)
        assert [Path(each.filename).name for each in caught] == [Path(__file__).name]


WORKERS: tuple[dict[str, Any], ...] = (
    {"workers": 0},
    {"workers": 2, "workers_are": "threads"},
    {"workers": 2, "workers_are": "processes"},
)


@pytest.mark.parametrize("workers", WORKERS, ids=lambda workers: workers.get("workers_are", "alone"))
def test_a_warning_of_workers_is_shown_once_at_the_line_that_takes_the_batch(
    tmp_path: Path, workers: dict[str, Any]
) -> None:
    for number in range(8):
        Image.fromarray(np.full((9, 9), 40 * number, np.uint16)).save(tmp_path / f"{number}.png")
    pipeline = [imagenet_train(8)] * 2
    with create_loader(tmp_path, batch_size=2, pipeline=pipeline, **workers) as loader:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                assert len([batch.index for batch in loader]) == 4
        assert [(Path(each.filename).name, str(each.message)[:13]) for each in caught] == [
            (Path(__file__).name, "16-bit images")
        ]
    with create_loader(tmp_path, batch_size=2, pipeline=pipeline, **workers) as loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="16-bit images"):
            next(iter(loader))


def test_a_thread_without_a_line_of_the_user_names_the_package() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thread = threading.Thread(target=warn_user, args=("from afar",))
        thread.start()
        thread.join()
        with collect_warnings() as warned:
            with collect_warnings():
                warn_user("of a loader in a worker")
            warn_user("kept", RuntimeWarning)
            warn_user("kept", RuntimeWarning)
    assert [(each.filename, str(each.message)) for each in caught] == [("penstock", "from afar")]
    assert warned == {"kept": RuntimeWarning}
