"""The environment of a record: versions and hardware without personal names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from penstock.bench.record.environment import describe_environment


def test_the_environment_contains_versions_and_no_personal_data() -> None:
    import getpass
    import socket

    text = json.dumps(describe_environment())
    assert torch.__version__ in text
    assert "simplejpeg" in text
    for private in (socket.gethostname(), f"/{getpass.getuser()}/", str(Path.home())):
        assert private not in text


def test_the_gpu_of_a_record_is_the_one_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: f"name of {device}")
    assert str(describe_environment("cuda:1")["gpu"]).startswith("name of cuda:1 x2, CUDA")
    assert str(describe_environment("cpu")["gpu"]).startswith("name of None x2")
