"""The environment of a record: versions and hardware, nobody's name."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from penstock.bench.measure.environment import describe_environment


def test_the_environment_names_versions_and_nobody() -> None:
    import getpass
    import socket

    text = json.dumps(describe_environment())
    assert torch.__version__ in text
    assert "simplejpeg" in text
    for private in (socket.gethostname(), f"/{getpass.getuser()}/", str(Path.home())):
        assert private not in text
