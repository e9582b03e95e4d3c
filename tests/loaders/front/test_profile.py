"""Saved profiles: what `backend="auto"` uses from them, and which are refused or ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.loaders import create_loader
from penstock.loaders.front.profile import Profile, load_profile, profile_path, save_profile
from penstock.loaders.system.machine import available_cpus
from penstock.pipelines import LoaderError, imagenet_train


def test_a_profile_for_another_machine_or_shape_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    save_profile(Profile(workers=3, cpus=available_cpus() + 1), path)
    assert load_profile(path) is None
    assert load_profile(tmp_path / "none.json") is None
    path.write_text('{"backend": "torch"}')
    with pytest.raises(LoaderError, match="E-MISUSE"):
        load_profile(path)
    assert profile_path("default").name == "default.json"


def test_a_profile_keeps_options_and_refuses_those_unknown_to_its_backend(photos: Path, tmp_path: Path) -> None:
    path, cpus = tmp_path / "p.json", available_cpus()
    chosen = Profile(
        backend="dali", workers=2, prefetch=1, cpus=cpus, options={"readers": 2, "preallocate": [640, 480]}
    )
    save_profile(chosen, path)
    assert load_profile(path) == chosen
    with create_loader(photos, backend="auto", profile=path, batch_size=8, pipeline=imagenet_train(32)) as loader:
        about = loader.describe()
    assert [about[name] for name in ("backend", "workers", "prefetch", "readers")] == ["dali", 2, 1, 2]
    with create_loader(photos, backend="auto", profile=path, batch_size=8, readers=1) as loader:
        assert loader.describe()["readers"] == 1  # explicit options win over saved ones
    for wrong, words in (
        (Profile(backend="torch", cpus=cpus, options={"readers": 2}), "backend 'torch' has no option readers"),
        (Profile(backend="dali", cpus=cpus, options={"readers": 0}), "readers must be at least 1"),
        (Profile(backend="grain", cpus=cpus), "unknown backend 'grain'"),
        (Profile(cpus=cpus, options={"workers": {"all": 2}}), r"Expected .*got `object` - at `\$.options"),
    ):
        save_profile(wrong, path)
        with pytest.raises(LoaderError, match=f"E-MISUSE.*p.json.*{words}.*delete it"):
            create_loader(photos, backend="auto", profile=path, batch_size=8)
