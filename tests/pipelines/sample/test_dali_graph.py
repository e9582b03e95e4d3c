"""DALI compared with the other decoders: bit-exact windows, resize within a level, or a clear error."""

from __future__ import annotations

import builtins
import gc
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import jpeg_parts as jp
import numpy as np
import numpy.typing as npt
import pytest
import torch
from broken_scans import KINDS, make_undecodable
from jpeg_samples import stoppable, unstoppable
from odd_images import JFIF, corpus, jpeg, scene, textured

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import INTERPOLATIONS, Interpolation, Window
from penstock.pipelines.jpeg.header import check_markers, parse_header
from penstock.pipelines.resampling import resize
from penstock.pipelines.sample.dali_graph import CropTask, DaliGraph, GraphSettings, dali_can_decode, import_dali
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.spec import ImagePipeline

BATCH = 16


@contextmanager
def graph(size: tuple[int, int], *, coded: bool = True, **settings: Any) -> Iterator[DaliGraph]:
    known = {"size": size, "batch_size": BATCH, "threads": 2, "depth": 2}
    made = DaliGraph(GraphSettings(**{**known, **settings}), coded=coded)
    yield made
    made.close()


def out_of(made: DaliGraph, tasks: Sequence[CropTask]) -> npt.NDArray[np.uint8]:
    """Return the images of the tasks, in their order, uint8 [tasks, height, width, 3]."""
    parts = []
    for start in range(0, len(tasks), BATCH):
        made.feed(tasks[start : start + BATCH])
        parts.append(made.take().cpu().numpy())
    return np.concatenate(parts)


def files() -> dict[str, bytes]:
    """Return JPEGs that DALI supports: every sampling, grey, progressive, with restarts, odd and extreme sizes."""
    odd = {image.name: image.data for image in corpus() if image.code is None and image.data.startswith(jp.SOI)}
    every = {**stoppable(), **unstoppable(), **odd}
    return {name: data for name, data in every.items() if dali_can_decode(parse_header(data), data)}


def window_of(draw: random.Random, width: int, height: int, size: tuple[int, int]) -> Window:
    return draw.randint(0, width - size[1]), draw.randint(0, height - size[0]), size[1], size[0]


# ---- decoded pixels ----


@pytest.mark.parametrize("size", [(1, 2), (2, 2), (8, 8), (13, 7), (16, 16), (17, 33), (40, 40), (1, 60), (60, 2)])
def test_random_windows_are_bit_exact_with_our_decoder(size: tuple[int, int]) -> None:
    """The graph's images have the windows' size: the results are decoded but not resized (see the next test)."""
    draw, decoder = random.Random(repr(size)), ImageDecoder(ImagePipeline())
    tasks, expected, names = [], [], []
    for name, data in files().items():
        probe = decoder.probe(data)
        for _ in range(6 if probe.height >= size[0] and probe.width >= size[1] else 0):
            window = window_of(draw, probe.width, probe.height, size)
            tasks.append(CropTask(data, window, False))
            expected.append(decoder.window(data, probe, window).copy())
            names.append((name, window))
    with graph(size) as made:
        out = out_of(made, tasks)
    assert len(tasks) > 100
    assert [name for name, one, two in zip(names, out, expected, strict=True) if not np.array_equal(one, two)] == []


def test_whole_images_are_bit_exact_with_our_decoder() -> None:
    """Any size, including one column and one row."""
    decoder, by_size, differ = ImageDecoder(ImagePipeline()), {}, []
    for name, data in files().items():
        probe = decoder.probe(data)
        by_size.setdefault((probe.height, probe.width), []).append((name, data, decoder.full(data).copy()))
    assert {(1, 1), (1, 3000), (3000, 1), (7, 9)} <= by_size.keys() | {size[::-1] for size in by_size}
    for size, images in by_size.items():
        with graph(size) as made:
            out = out_of(made, [CropTask(data, (0, 0, size[1], size[0]), False) for _, data, _ in images])
        differ += [name for (name, _, pixels), one in zip(images, out, strict=True) if not np.array_equal(one, pixels)]
    assert differ == []


# ---- resize and mirror ----


@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("scale", "level"), [((1.0, 6.0), 4), ((0.1, 1.0), 1)], ids=["to smaller images", "to larger images"]
)
@pytest.mark.parametrize("coded", [True, False], ids=["JPEGs", "pixels"])
def test_the_resize_equals_torchs_within_a_level(
    coded: bool, scale: tuple[float, float], level: int, name: Interpolation
) -> None:
    """Mean distance at most 0.3 levels; at most `level` except in one value per thousand: edges differ more.

    A cubic filter that enlarges repeats more edge pixels, and overshoots where torch clips after the first pass.
    """
    mean, level = (0.5, 6) if (name, level) == ("bicubic", 1) else (0.3, level)
    size, draw, decoder = (48, 31), random.Random(5), ImageDecoder(ImagePipeline())
    data = jpeg(textured(330, 250), quality=90, subsampling=2)
    probe, whole = decoder.probe(data), decoder.full(data).copy()
    tasks, expected = [], []
    for _ in range(4 * BATCH):
        sides = [max(2, min(side * draw.uniform(*scale), limit)) for side, limit in zip(size, (330, 250), strict=True)]
        x, y, width, height = window_of(draw, probe.width, probe.height, (int(sides[0]), int(sides[1])))
        crop = np.ascontiguousarray(whole[y : y + height, x : x + width])
        given = (data, (x, y, width, height)) if coded else (crop, (0, 0, width, height))
        tasks.append(CropTask(*given, flip=False, interpolation=INTERPOLATIONS.index(name)))
        expected.append(resize(crop, size, name))
    with graph(size, coded=coded) as made:
        distance = np.abs(out_of(made, tasks).astype(int) - np.stack(expected))
    assert distance.mean(axis=(1, 2, 3)).max() <= mean
    assert np.quantile(distance, 0.999) <= level
    assert distance.any()  # equal images would mean that DALI did not make them


# ---- batches ----


@pytest.mark.parametrize("device", [None, pytest.param(0, marks=pytest.mark.gpu)], ids=["CPU", "GPU"])
def test_taken_batches_are_not_overwritten(device: int | None) -> None:
    with graph((24, 24), coded=False, device_id=device) as made:
        kept, copies = [], []
        for k in range(31):
            made.feed([CropTask(np.full((30, 30, 3), k, np.uint8), (0, 0, 30, 30), False)] * BATCH)
            kept.append(made.take())
            copies.append(kept[-1].clone())
    gc.collect()
    assert all(torch.equal(one, two) for one, two in zip(kept, copies, strict=True))
    assert [int(images.min()) for images in kept] == [int(images.max()) for images in kept] == list(range(31))


@pytest.mark.parametrize("coded", [True, False], ids=["JPEGs", "pixels"])
def test_fed_memory_may_be_dropped_at_once(coded: bool) -> None:
    """DALI reads it later, without a copy."""

    def fed(made: DaliGraph, k: int) -> None:
        pixels = np.full((200, 200, 3), k, np.uint8)
        data = jpeg(pixels, quality=100) if coded else pixels
        made.feed([CropTask(data, (0, 0, 200, 200), False) for _ in range(BATCH)])

    with graph((16, 16), coded=coded, depth=3) as made:
        for k in range(0, 240, 9):
            fed(made, k)
            fed(made, k + 1)
            fed(made, k + 2)
            gc.collect(0)
            rubbish = [np.full((200, 200, 3), 255, np.uint8) for _ in range(BATCH)]  # may reuse the freed memory
            assert [(int(t.min()), int(t.max())) for t in (made.take() for _ in range(3))] == [
                (k + i, k + i) for i in range(3)
            ]
            del rubbish


# ---- files that DALI refuses, or that are not passed to it ----


@pytest.mark.parametrize("progressive", [False, True], ids=["baseline", "progressive"])
@pytest.mark.parametrize("kind", KINDS)
def test_dali_reports_an_undecodable_jpeg_in_one_line(kind: str, progressive: bool) -> None:
    good = jpeg(textured(61, 83), subsampling=2, progressive=progressive)
    broken = make_undecodable(good, kind)
    header = parse_header(broken)
    check_markers(broken, header)
    assert dali_can_decode(header, broken)
    with pytest.raises(LoaderError, match="E-CORRUPT"):
        ImageDecoder(ImagePipeline()).full(broken)
    tasks = [CropTask(data, (0, 0, 8, 8), False) for data in (good, broken, good)]
    with graph((8, 8)) as made, pytest.raises(LoaderError) as caught:
        out_of(made, tasks)
    assert caught.value.code == "E-CORRUPT"
    assert caught.value.cause == "DALI: Failed to decode sample #1"
    assert "\n" not in str(caught.value)


def test_window_outside_the_image_is_refused() -> None:
    data = jpeg(textured(61, 83))
    with graph((8, 8)) as made, pytest.raises(LoaderError, match=r"E-CORRUPT.*DALI: The cropping window .* not valid"):
        out_of(made, [CropTask(data, (80, 0, 8, 8), False)])


def adobe(transform: int) -> bytes:
    return jp.segment(jp.APP14, b"Adobe\0\x64\0\0\0\0" + bytes([transform]))


def three_components(head: bytes, ids: bytes = b"\1\2\3") -> bytes:
    planes = jp.ycc(scene(16, 16))
    return jp.encode([jp.Component(plane, ident) for plane, ident in zip(planes, ids, strict=True)], head=head)


TAKEN = {
    "JFIF": (three_components(JFIF), True),
    "JFIF, odd ids": (three_components(JFIF, b"\0\1\2"), True),
    "JFIF, letters": (three_components(JFIF, b"RGB"), True),
    "JFIF that is cut short": (three_components(jp.segment(jp.APP0, b"JFIF\0\1\1"), b"RGB"), False),
    "another APP0": (three_components(jp.segment(jp.APP0, b"JFXX\0" + bytes(9)), b"RGB"), False),
    "Adobe 0": (three_components(adobe(0)), False),
    "Adobe 1": (three_components(adobe(1)), True),
    "Adobe 1, odd ids": (three_components(adobe(1), b"RGB"), True),
    "Adobe 2": (three_components(adobe(2)), False),
    "JFIF and Adobe 0": (three_components(JFIF + adobe(0)), False),
    "Adobe 1, then 0": (three_components(adobe(1) + adobe(0)), False),
    "Adobe that is cut short": (three_components(jp.segment(jp.APP14, b"Adobe\0\x64\0")), True),
    "another APP14": (three_components(jp.segment(jp.APP14, b"Apple\0\x64\0\0\0\0\0")), True),
    "no marker": (three_components(b""), True),
    "no marker, odd ids": (three_components(b"", b"\0\1\2"), False),
    "no marker, letters": (three_components(b"", b"RGB"), False),
    "grey": (jpeg(scene(16, 16)[..., 0]), True),
    "grey, Adobe 0": (jp.insert(jpeg(scene(16, 16)[..., 0]), adobe(0)), True),
    "progressive": (jpeg(scene(16, 16), progressive=True), True),
    "arithmetic coding": (jp.with_frame(jpeg(scene(16, 16)), marker=0xC9), False),
}


@pytest.mark.parametrize("name", TAKEN)
def test_dali_gets_only_certain_ycbcr(name: str) -> None:
    data, taken = TAKEN[name]
    assert dali_can_decode(parse_header(data), data) is taken


# ---- settings ----


def test_gpu_decoder_gets_its_options() -> None:
    knobs = {"hw_decoder_load": 0.9, "preallocate": (640, 480), "device_memory_padding": 1 << 20}
    known = {"size": (8, 8), "batch_size": 4, "threads": 2, "depth": 2}
    assert GraphSettings(**known, **knobs).decoder_options() == {}
    options = GraphSettings(**known, device_id=1, **knobs).decoder_options()
    assert options.pop("affine") is False
    assert options == {
        "hw_decoder_load": 0.9,
        "preallocate_width_hint": 640,
        "preallocate_height_hint": 480,
        "device_memory_padding": 1 << 20,
    }
    padded = GraphSettings(**known, device_id=0, host_memory_padding=0)
    assert padded.decoder_options()["host_memory_padding"] == 0
    assert "device_memory_padding" not in padded.decoder_options()


# ---- DALI missing or not working ----


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ModuleNotFoundError("No module named 'nvidia.dali'"), "ModuleNotFoundError: No module named 'nvidia.dali'"),
        (OSError("libcudart.so.13:\ncannot open shared object file"), "OSError: libcudart.so.13: cannot open"),
    ],
    ids=["missing", "a library is missing"],
)
@pytest.mark.parametrize(
    ("cuda", "extra"),
    [("12.6", "dali-cuda120"), ("13.0", "dali-cuda130"), (None, "dali-cuda130"), ("11.8", "dali-cuda120")],
)
def test_without_dali_the_error_contains_the_install_command(
    monkeypatch: pytest.MonkeyPatch, error: Exception, words: str, cuda: str | None, extra: str
) -> None:
    original = builtins.__import__

    def fail(name: str, *arguments: Any, **named: Any) -> ModuleType:
        if name.startswith("nvidia.dali"):
            raise error
        return original(name, *arguments, **named)

    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(builtins, "__import__", fail)
    with pytest.raises(LoaderError) as caught:
        import_dali()
    assert (caught.value.code, caught.value.exit_code) == ("E-DEPENDENCY", 7)
    assert words in caught.value.cause
    assert f"pip install 'nvidia-{extra}>=2.2'" in caught.value.fix
    assert ("either runs without a GPU" in caught.value.fix) == (cuda is None)
    assert (f"CUDA {cuda}" in caught.value.fix) == (cuda is not None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("version", "usable"),
    [("1.44.0", False), ("2.1.0", False), ("2.2.0", True), ("2.10.0", True), ("3.0.0dev", True), ("", False)],
)
def test_a_version_that_is_too_old_is_reported(monkeypatch: pytest.MonkeyPatch, version: str, usable: bool) -> None:
    dali = import_dali()
    monkeypatch.setattr(dali, "__version__", version)
    if usable:
        assert import_dali() is dali
        return
    with pytest.raises(LoaderError, match=r"E-DEPENDENCY.*is too old: 2\.2 or newer.*pip install 'nvidia-dali-"):
        import_dali()


def test_a_gpu_without_a_driver_is_reported_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a driver")
    with pytest.raises(LoaderError) as caught:
        DaliGraph(GraphSettings(size=(8, 8), batch_size=4, threads=1, depth=1, device_id=0), coded=True)
    error = caught.value
    assert (error.code, error.exit_code) == ("E-DEPENDENCY", 7)
    assert error.cause.startswith("DALI cannot run on GPU 0: ")
    assert "nvidia-smi" in error.fix
    assert "pip install" in error.fix
    assert "\n" not in str(error)
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (RuntimeError("Can't allocate 4096 bytes on device 0"), "E-MEM"),
        (MemoryError("no room"), "E-MEM"),
        (RuntimeError("Resource temporarily unavailable"), "E-MEM"),  # a thread that could not be started
        (ValueError("no such operator argument"), "E-DEPENDENCY"),
    ],
)
def test_a_graph_that_cannot_be_built_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, code: str
) -> None:
    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr(DaliGraph, "_built", fail)
    with pytest.raises(LoaderError, match=code) as caught, graph((8, 8)):
        pass
    assert str(raised) in str(caught.value)
    assert caught.value.__cause__ is raised


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("nvImageCodec failure: '#3'", "E-CORRUPT"),
        ("CUDA allocation failed", "E-MEM"),
        ("Can't allocate 4096 bytes on device 0", "E-MEM"),
        ("std::bad_alloc", "E-MEM"),
        ("CUDA runtime API error cudaErrorIllegalAddress (700): an illegal memory access", "E-WORKER"),
    ],
)
def test_a_failure_of_the_device_is_not_reported_as_a_bad_file(
    monkeypatch: pytest.MonkeyPatch, words: str, code: str
) -> None:
    """Otherwise every batch would be repeated without DALI, like a refused batch, and decoded silently on the CPU."""

    class Failing:
        def outputs(self) -> None:
            raise RuntimeError(f"Critical error in pipeline: encountered: {words} Current pipeline object is ...")

    with graph((8, 8)) as made:
        made._pipe = Failing()
        with pytest.raises(LoaderError, match=code) as caught:
            made.take()
    assert caught.value.cause == f"DALI: {words}"


# ---- on the device ----


def test_taking_a_batch_from_a_gpu_makes_no_stream_wait() -> None:
    """torch would pass this thread's current stream, which is the consumer's: DALI would make it wait."""

    class OnDevice:
        def __dlpack__(self, *, stream: int) -> object:
            assert stream == -1
            return torch.utils.dlpack.to_dlpack(torch.arange(3))

        def __dlpack_device__(self) -> None:
            raise AssertionError("torch asked for the device, in order to pass its current stream")

    class Complete:
        def outputs(self) -> list[Complete]:
            return [self]

        def as_tensor(self) -> OnDevice:
            return OnDevice()

    with graph((8, 8)) as made:
        made._pipe, made._settings = Complete(), replace(made._settings, device_id=0)
        made._fed.append(None)
        assert made.take().tolist() == [0, 1, 2]


@pytest.mark.parametrize("coded", [True, False], ids=["JPEGs", "pixels"])
def test_the_graph_of_a_gpu_can_be_defined(coded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options exist and its stages fit; only building it needs a GPU."""
    outputs = []
    pipeline = import_dali().Pipeline
    monkeypatch.setattr(pipeline, "set_outputs", lambda pipe, *nodes: outputs.extend(nodes))
    monkeypatch.setattr(pipeline, "build", lambda pipe: None)
    made = DaliGraph.__new__(DaliGraph)
    made.coded = coded
    made._settings = GraphSettings(
        size=(32, 48),
        batch_size=4,
        threads=2,
        depth=3,
        device_id=0,
        preallocate=(500, 400),
        device_memory_padding=1 << 20,
        host_memory_padding=1 << 20,
    )
    made._built(import_dali())
    assert [node.device for node in outputs] == ["gpu"]


@pytest.mark.gpu
@pytest.mark.parametrize("coded", [True, False], ids=["JPEGs", "pixels"])
def test_gpu_images_are_near_those_of_the_cpu(coded: bool) -> None:
    draw, size = random.Random(9), (48, 48)
    tasks = []
    for data in files().values():
        header = parse_header(data)
        if min(header.width, header.height) >= 16:
            window = window_of(draw, header.width, header.height, (16, 16))
            tasks.append(CropTask(data, window, draw.random() < 0.5))
    if not coded:
        pixels = np.random.default_rng(2).integers(0, 256, (40, 60, 3), np.uint8)
        tasks = [CropTask(pixels, (0, 0, 60, 40), flip) for flip in (False, True)]
    with graph(size, coded=coded) as host, graph(size, coded=coded, device_id=0) as device:
        expected = out_of(host, tasks)
        device.feed(tasks[:BATCH])
        assert device.take().device.type == "cuda"
        distance = np.abs(out_of(device, tasks).astype(int) - expected)
    assert distance.mean() <= 2
    assert distance.mean(axis=(1, 2, 3)).max() <= 4
