"""The values that a search tries: the backend's own first, none that the user has fixed."""

from __future__ import annotations

from pathlib import Path

import pytest
from photo_folder import write_folder

from penstock.bench import knobs
from penstock.bench.knobs import knobs_of, unlike_defaults
from penstock.loaders import create_loader


@pytest.mark.parametrize("cpus", [1, 2, 5, 16, 64])
def test_the_first_value_is_what_the_backend_takes_by_itself(
    cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knobs, "default_workers", lambda: cpus)
    monkeypatch.setattr("penstock.loaders.dali_loader.default_workers", lambda: cpus)
    space = knobs_of("dali", "cpu")
    with create_loader(write_folder(tmp_path, 6), backend="dali", batch_size=2) as loader:
        about = loader.describe()
    assert {knob: values[0] for knob, values in space.items()} == {knob: about[knob] for knob in space}
    assert {"workers", "readers", "prefetch"} == set(space)
    for values in space.values():
        assert len(set(values)) == len(values) > 1
        assert all(isinstance(value, int) and value >= 1 for value in values)


def test_a_gpu_has_knobs_of_its_decoder_and_memory_only_for_large_images() -> None:
    space = knobs_of("dali", "cuda:1", None, (500, 400))
    assert space["hw_decoder_load"] == (0.65, 0.5, 0.8, 0.95)
    assert "device_memory_padding" not in space  # what DALI allocates by itself is enough
    assert knobs_of("dali", "cuda", None, (5980, 6430))["device_memory_padding"] == (None, 202 << 20)
    assert "hw_decoder_load" not in knobs_of("dali", "cpu", None, (5980, 6430))


def test_what_the_user_fixed_and_what_nobody_searches_is_left_alone() -> None:
    assert set(knobs_of("dali", "cpu", 3)) == {"readers", "prefetch"}
    assert knobs_of("dali", "cpu", 0) == {}
    assert knobs_of("torch", "cpu") == knobs_of("hdf5", "cuda") == knobs_of("auto", "cpu") == {}


def test_the_call_names_what_the_backend_would_not_choose_by_itself() -> None:
    options = {"prefetch": 2, "hw_decoder_load": 0.8, "readers": 1, "device_memory_padding": None}
    assert unlike_defaults("dali", options) == {"hw_decoder_load": 0.8, "readers": 1}
    assert unlike_defaults("torch", {}) == {}
