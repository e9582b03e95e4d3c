"""Settings that tuned=True, or num_workers="auto", chooses for the drop-in DataLoader, its warnings and errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drop_in_streams import values
from numbered_dataset import Numbered, Stream
from torch.utils.data import TensorDataset

from penstock.loaders.drop_in import recommended_settings
from penstock.loaders.drop_in.data_loader import DataLoader
from penstock.loaders.system.machine import default_workers
from penstock.pipelines.errors import LoaderError


@pytest.mark.parametrize("asked", [{"tuned": True}, {"num_workers": "auto"}])
def test_tuned_settings_are_reported_once_and_serve_the_same(asked: dict[str, Any]) -> None:
    with pytest.warns(
        UserWarning, match=r"DataLoader\((tuned=True|num_workers='auto')\) uses .* random trans"
    ) as caught_warnings:
        loader = DataLoader(Numbered(7), 2, **asked)
    assert len(caught_warnings) == 1
    assert caught_warnings[0].filename == __file__
    assert "\n" not in str(caught_warnings[0].message)
    assert (loader.num_workers, loader.prefetch_factor) == (default_workers(), recommended_settings.TUNED_PREFETCH)
    assert (loader.pin_memory, loader.persistent_workers) == (torch.cuda.is_available(), False)
    with loader:
        assert values(loader) == [[0, 1], [2, 3], [4, 5], [6]]


@pytest.mark.filterwarnings("ignore:DataLoader.tuned=True:UserWarning")
def test_settings_of_the_user_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(Numbered(4), num_workers=1, prefetch_factor=5, tuned=True)
    assert (loader.num_workers, loader.prefetch_factor) == (1, 5)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    pinned = {d: DataLoader(Numbered(4), device=d, tuned=True).pin_memory for d in (None, "cuda", "cuda:1", "cpu")}
    assert pinned == {None: True, "cuda": True, "cuda:1": True, "cpu": False}
    monkeypatch.setattr(recommended_settings.multiprocessing.current_process(), "_config", {"daemon": True})
    with pytest.warns(UserWarning, match="num_workers=0") as caught_warnings:
        assert DataLoader(Numbered(4), num_workers="auto").num_workers == 0
    assert "random transforms" not in str(caught_warnings[0].message)  # there is no worker with its own generator


class OnDevice:
    is_cuda = True


def test_tuning_that_would_serve_other_samples_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recommended_settings, "default_workers", lambda: 2)
    on_device = TensorDataset(torch.zeros(4))
    on_device.tensors = (OnDevice(),)  # type: ignore[assignment]
    for dataset, why in ((Stream(4), "would serve the whole IterableDataset"), (on_device, "CUDA tensors")):
        with pytest.raises(LoaderError, match=why) as caught:
            DataLoader(dataset, tuned=True)
        assert caught.value.code == "E-MISUSE"
    with pytest.warns(UserWarning, match="num_workers=2"):
        DataLoader(Stream(4), num_workers=2, tuned=True)
