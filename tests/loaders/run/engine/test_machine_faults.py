"""Faults of the machine end the epoch under any policy, because another sample would fail as well."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from memory_source import MemorySource
from photo_folder import photo, write_folder

from penstock.loaders import LoaderError, create_loader
from penstock.loaders.front.loader import Loader
from penstock.pipelines import imagenet_train
from penstock.pipelines.errors import ERROR_CODES

POLICIES = pytest.mark.parametrize("policy", ["raise", "replace"])
ENGINES = pytest.mark.parametrize(
    "engine",
    [
        {"backend": "torch", "workers": 0},
        {"backend": "dali", "workers": 0},
        {"backend": "dali", "workers": 2, "readers": 1},
    ],
    ids=["in the process", "dali", "dali's threads"],
)


class Faults:
    """Raises an error with one code when the sample is read."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __call__(self) -> None:
        raise LoaderError(self.code, "planted by the test")


def open_loader(source: Any, **settings: Any) -> Loader:
    defaults = {"pipeline": imagenet_train(16), "batch_size": 4, "shuffle": False, "workers": 0}
    return create_loader(source, **{**defaults, **settings})


@POLICIES
@pytest.mark.parametrize("code", sorted(set(ERROR_CODES) - {"E-REPAIRED"}))  # E-REPAIRED has its own policy
def test_only_faults_of_data_are_replaced(policy: str, code: str) -> None:
    source = MemorySource([photo(number) for number in range(8)], {5: Faults(code)})
    replaced = policy == "replace" and ERROR_CODES[code].exit_code in (3, 4)
    with open_loader(source, on_bad_sample=policy) as loader:
        stream = loader.batches()
        assert next(stream).index.tolist() == [0, 1, 2, 3]  # the batches before it are served
        if replaced:
            assert next(stream).index.tolist() == [4, 6, 6, 7]
            assert loader.ledger().replaced == 1
            return
        with pytest.raises(LoaderError) as caught:
            next(stream)
        assert (caught.value.code, caught.value.sample) == (code, 5)


@ENGINES
@pytest.mark.parametrize("at", [5, 6])
def test_a_fault_at_a_substitute_ends_the_epoch_too(engine: dict[str, Any], at: int) -> None:
    source = MemorySource([photo(n) if n != 5 else b"" for n in range(8)], {at: Faults("E-FD")})
    with (
        open_loader(source, on_bad_sample="replace", **engine) as loader,
        pytest.raises(LoaderError, match=r"E-FD\] sample="),
    ):
        list(loader)


@ENGINES
def test_a_missing_pillow_is_not_a_bad_sample(monkeypatch: pytest.MonkeyPatch, engine: dict[str, Any]) -> None:
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x20\0\0\0\x20\x08\x02\0\0\0\xfc\x18\xed\xa3"
    png += b"\0\0\0\0IEND\xaeB`\x82"
    monkeypatch.setitem(sys.modules, "PIL", None)
    for name in [name for name in sys.modules if name.endswith("sample.decode_pillow")]:
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(sys.modules[name.rpartition(".")[0]], "decode_pillow", raising=False)
    source = MemorySource([photo(number) if number % 2 else png for number in range(8)])
    with (
        open_loader(source, on_bad_sample="replace", **engine) as loader,
        pytest.raises(LoaderError, match=r"E-DEPENDENCY.*Pillow.*pip install pillow"),
    ):
        list(loader)


@pytest.mark.parametrize(("number", "code"), [(errno.EMFILE, "E-FD"), (errno.ENFILE, "E-FD"), (errno.ENOMEM, "E-MEM")])
def test_a_file_that_the_machine_cannot_open_is_not_a_bad_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    photos = write_folder(tmp_path / "photos", 8)
    own = os.open

    def fail(path: Any, *arguments: Any, **more: Any) -> int:
        if str(path).find("0003.jpg") >= 0:
            raise OSError(number, os.strerror(number))
        return own(path, *arguments, **more)

    with open_loader(photos, on_bad_sample="replace", decoder="simplejpeg") as loader:
        monkeypatch.setattr(os, "open", fail)
        with pytest.raises(LoaderError) as caught:
            list(loader)
    assert caught.value.code == code
    assert b"0003.jpg" in os.fsencode(caught.value.path or b"")
