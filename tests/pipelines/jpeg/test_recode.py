"""The jpegtran process: the copy it makes, and every way in which it can fail to."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import simplejpeg
from jpeg_samples import stoppable, unstoppable

from penstock.loaders.cache_build.encode import SampleEncoder
from penstock.loaders.data.cache.format import Encoding
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.jpeg import recode as jpeg_recode
from penstock.pipelines.jpeg.header import EOI, parse_header
from penstock.pipelines.jpeg.recode import FAILED, MISSING, RecodeError, jpegtran_path, jpegtran_version, recode
from penstock.pipelines.jpeg.strips import restart_interval

DATA = stoppable()["420_83x61"]
HEADER = parse_header(DATA)
Program = Callable[[str], Path]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Puts a shell script in the place of jpegtran."""

    def put(script: str) -> Path:
        path = tmp_path / "jpegtran"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(jpeg_recode, "jpegtran_path", lambda: str(path))
        return path

    return put


def reason(**settings: float) -> tuple[str, str]:
    with pytest.raises(RecodeError) as caught:
        recode(DATA, HEADER, 2, **settings)
    return caught.value.reason, str(caught.value)


@pytest.mark.parametrize("name", ["420_83x61", "444_restart_3_83x61", "grey_83x61"])
def test_copy_has_the_restart_interval_and_the_pixels(name: str) -> None:
    data = stoppable()[name]
    comment = b"\xff\xfe\x00\x06hush"
    copy = recode(data[:2] + comment + data[2:], parse_header(data), 3)
    assert b"hush" not in copy
    header = parse_header(copy)
    assert copy.endswith(EOI)
    assert restart_interval(copy, header) == 3
    assert (simplejpeg.decode_jpeg(copy, strict=True) == simplejpeg.decode_jpeg(data, strict=True)).all()


def test_progressive_becomes_baseline() -> None:
    data = unstoppable()["progressive_420"]
    header = parse_header(recode(data, parse_header(data), 2))
    assert parse_header(data).sof == 0xC2
    assert (header.sof, header.stoppable) == (0xC0, True)


def test_no_descriptor_and_no_process_is_left(fake: Program) -> None:
    before, children = len(os.listdir("/proc/self/fd")), psutil.Process().children()
    recode(DATA, HEADER, 2)
    fake("exit 3")
    reason()
    assert len(os.listdir("/proc/self/fd")) == before
    assert psutil.Process().children() == children


def test_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    jpegtran_path.cache_clear()
    jpegtran_version.cache_clear()
    try:
        assert jpegtran_version() == ""
        assert reason() == (MISSING, MISSING)
    finally:
        jpegtran_path.cache_clear()
        jpegtran_version.cache_clear()


def test_version_is_the_programs() -> None:
    assert "version" in jpegtran_version()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("printf 'line one\\nline two' >&2; exit 1", "exit code 1, line one line two"),
        ("cat; echo 'Corrupt JPEG data' >&2; exit 2", "exit code 2, Corrupt JPEG data"),  # a warning
        ("kill -SEGV $$", "exit code -11,"),
    ],
)
def test_failure_names_exit_code_and_message_in_one_line(fake: Program, script: str, message: str) -> None:
    fake(script)
    assert reason() == (FAILED, f"jpegtran failed: {message}")


@pytest.mark.parametrize("name", ["KILL", "TERM", "INT", "HUP"])
def test_killed_is_no_fault_of_the_image(fake: Program, name: str) -> None:
    fake(f"kill -{name} $$; sleep 5")
    with pytest.raises(LoaderError, match=f"E-WORKER.*jpegtran was stopped by SIG{name}"):
        recode(DATA, HEADER, 2)
    with pytest.raises(LoaderError, match="E-WORKER"):  # the native library leaves a progressive image to jpegtran
        SampleEncoder(Encoding()).encode(unstoppable()["progressive_420"], 0)


def test_cannot_be_run(fake: Program) -> None:
    fake("").chmod(0o644)
    assert reason() == (FAILED, "jpegtran failed: it cannot be run (Permission denied)")


@pytest.mark.parametrize("pidfd", [True, False])
def test_timeout_kills_it(pidfd: bool, fake: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = recode(DATA, HEADER, 2)
    if not pidfd:
        monkeypatch.setattr(os, "pidfd_open", _not_there)
    assert recode(DATA, HEADER, 2) == copy
    fake(f"echo $$ > {tmp_path}/pid; exec sleep 100")
    assert reason(timeout_s=0.3) == (FAILED, "jpegtran failed: it took longer than 0.3 s")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def _not_there(pid: int) -> int:
    raise OSError(38, "Function not implemented")


def test_interrupt_kills_it(fake: Program, tmp_path: Path) -> None:
    fake(f"echo $$ > {tmp_path}/pid; exec sleep 100")

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            recode(DATA, HEADER, 2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_more_memory_than_the_header_says_is_refused() -> None:
    big = simplejpeg.encode_jpeg(np.zeros((4000, 4000, 3), np.uint8), 30, "RGB", "444")
    tiny = HEADER._replace(width=1, height=1)
    with pytest.raises(RecodeError, match="exit code 1"):
        recode(big, tiny, 2)
    assert recode(big, parse_header(big), 4)
