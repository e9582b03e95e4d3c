"""The dali backend: torch's stream within a level, itself bit for bit, whatever breaks in the data or in DALI."""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dali_endings
import numpy as np
import psutil
import pytest
import torch
from broken_scans import KINDS, repairable, undecodable
from dali_streams import Stream, open_loader, pixels_of, stream, stream_of
from faulty_source import FaultySource, OpenFifo
from memory_source import MemorySource
from odd_images import corpus, encoded, jpeg, scene, textured
from photo_folder import photo, write_folder
from processes import eventually

from penstock.loaders import LoaderError, create_loader
from penstock.loaders.backends import dali_stage
from penstock.loaders.backends.dali_backend import DaliEngine, DaliOptions
from penstock.loaders.cache.format import Encoding
from penstock.loaders.engine.producer import ProducerSettings
from penstock.loaders.stream.contract import Cursor
from penstock.loaders.stream.order import Schedule
from penstock.pipelines import imagenet_eval, imagenet_train
from penstock.pipelines.jpeg.header import parse_header
from penstock.pipelines.sample.dali_graph import DaliGraph, dali_can_decode

NUM_PHOTOS = 48
WORKERS = [{"workers": 0}, {"workers": 2, "readers": 2, "prefetch": 3}]
IDS = ["in the process", "threads"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), NUM_PHOTOS)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("penstock-")]


def assert_near(dali: Stream, ours: Stream, level: float = 1.0) -> None:
    """Everything but the pixels is equal; each image is at most `level` levels away on average."""
    assert dali.numbers() == ours.numbers()
    assert dali.distance(ours).max() <= level


def assert_taken(dali: Stream, ours: Stream) -> None:
    """The same, and DALI took every batch: one that it refuses is made again without it, and then equal anyhow."""
    assert_near(dali, ours)
    assert dali.about["batches_refused"] == 0


# ---- one stream ----


@pytest.fixture(scope="module")
def odd_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus, shuffled: 64 refused images in a row would be a refused data set."""
    root, images = tmp_path_factory.mktemp("odd") / "photos", corpus()
    random.Random(4).shuffle(images)
    for number, image in enumerate(images):
        folder = root / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:03d}_{image.name}.jpg").write_bytes(image.data)
    return root


@pytest.fixture(scope="module")
def odd_cache(odd_folder: Path) -> Path:
    path = odd_folder.with_name("odd.h5")
    with open_loader(odd_folder, backend="hdf5", cache=path, batch_size=8):
        return path


@pytest.mark.parametrize("exif", ["ignore", "apply"])
@pytest.mark.parametrize("cached", [False, True], ids=["files", "lossless cache"])
def test_odd_images_are_served_as_on_the_torch_backend(
    odd_folder: Path, odd_cache: Path, exif: str, cached: bool
) -> None:
    settings = {"pipeline": imagenet_train(32, exif=exif), "batch_size": 20, "on_bad_sample": "replace"}
    settings["drop_last"] = False
    ours = stream(odd_folder, epochs=2, backend="torch", **settings)
    assert len({entry[1] for entry in ours.bad}) >= 7
    for options in WORKERS:
        cache = {"cache": odd_cache} if cached else {}
        assert_taken(stream(odd_folder, epochs=2, **settings, **cache, **options), ours)


def test_pixels_in_memory_are_served_as_on_the_torch_backend() -> None:
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (100, 32, 32, 3), np.uint8), draw.integers(0, 10, 100)
    smooth = np.stack([scene(32, 32) // 2 + image // 4 for image in images])
    settings = {"batch_size": 24, "pipeline": imagenet_train(24)}
    ours = stream((smooth, labels), epochs=2, backend="torch", **settings)
    for options in WORKERS:
        assert_taken(stream((smooth, labels), epochs=2, **settings, **options), ours)


def test_pixels_of_a_cache_are_served_as_on_the_torch_backend(photos: Path, tmp_path: Path) -> None:
    settings = {"batch_size": 12, "cache": tmp_path / "raw.h5", "encoding": Encoding(kind="raw")}
    ours = stream(photos, backend="torch", batch_size=12)
    for options in WORKERS:
        assert_taken(stream(photos, **settings, **options), ours)


def mixed() -> list[Any]:
    """JPEGs, pixels, and images that neither graph takes."""
    cmyk = next(image.data for image in corpus() if image.name == "jpeg_cmyk_pillow")
    kinds = (photo, lambda k: textured(40 + k, 50), lambda k: encoded(scene(50, 40 + k), "PNG"), lambda k: cmyk)
    return [kinds[k % 4](k) for k in range(40)]


def test_all_kinds_of_rows_may_meet_in_a_batch() -> None:
    ours = stream(MemorySource(mixed()), epochs=2, backend="torch", batch_size=8)
    for options in WORKERS:
        assert_taken(stream(MemorySource(mixed()), epochs=2, batch_size=8, **options), ours)


OPTIONS = [
    {"workers": 1, "readers": 1, "prefetch": 1},
    {"workers": 2, "readers": 3, "prefetch": 3},
    {"workers": 5, "readers": 1, "prefetch": 2},
    {"workers": 1, "readers": 4, "prefetch": 8},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_no_option_changes_a_bit_of_what_dali_serves(options: dict[str, Any]) -> None:
    items = mixed()
    first = stream(MemorySource(items), epochs=2, batch_size=6)
    other = stream(MemorySource(items), epochs=2, batch_size=6, **options)
    assert other.numbers() == first.numbers()
    assert np.array_equal(other.pixels, first.pixels)
    assert first.about["batches_refused"] == other.about["batches_refused"] == 0


@pytest.mark.parametrize("options", WORKERS, ids=IDS)
def test_a_resumed_stream_is_the_same_bit_for_bit(photos: Path, options: dict[str, Any]) -> None:
    whole = stream(photos, epochs=2, batch_size=8)
    for stop in (1, 4, 6, 9):
        with open_loader(photos, batch_size=8, **options) as loader:
            batches = itertools.chain.from_iterable(loader.batches() for _ in range(2))
            head = [pixels_of(batch) for batch in itertools.islice(batches, stop)]
            state = loader.state_dict()
        with open_loader(photos, batch_size=8, workers=3, readers=2, prefetch=2) as loader:
            loader.load_state_dict(state)
            rest = stream_of(loader, 2)
        assert np.array_equal(np.concatenate([*head, rest.pixels]), whole.pixels)


def test_a_seek_drops_what_dali_has_under_way(photos: Path) -> None:
    with open_loader(photos, batch_size=8, workers=2, prefetch=4, watchdog_s=20.0) as loader:
        first = [pixels_of(batch) for batch in itertools.islice(loader.batches(), 2)]
        for _ in range(15):
            assert eventually(lambda: loader._engine.ready() > 1)  # else there would be nothing to drop
            loader.set_epoch(3)
            next(loader.batches())
            loader.set_epoch(0)
            again = [pixels_of(batch) for batch in itertools.islice(loader.batches(), 2)]
            assert np.array_equal(first, again)


def test_it_says_what_runs(photos: Path) -> None:
    with open_loader(photos, batch_size=8, workers=3, prefetch=4) as loader:
        about = loader.describe()
    expected = {"backend": "dali", "workers": 3, "readers": 1, "prefetch": 4, "decodes_on": "cpu", "batches_refused": 0}
    assert {name: about[name] for name in expected} == expected
    assert str(about["dali"]).split(".")[0].isdigit()
    assert "hw_decoder_load" not in about


# ---- bad samples ----


NOT_EVEN_A_HEADER = (b"", b"<html>", photo(1)[:-2], photo(2)[:200])


def broken(number: int) -> bytes:
    """A bad file of one of nine kinds: four that are refused by their header, five that only decoding shows."""
    kind = number % (len(NOT_EVEN_A_HEADER) + len(KINDS))
    if kind < len(NOT_EVEN_A_HEADER):
        return NOT_EVEN_A_HEADER[kind]
    return undecodable(photo(number), KINDS[kind - len(NOT_EVEN_A_HEADER)])


def refused_by_dali(data: bytes) -> bool:
    """Whether it gets as far as DALI."""
    return data not in NOT_EVEN_A_HEADER and dali_can_decode(parse_header(data), data)


def assert_refused(dali: Stream, batches: int, options: dict[str, Any]) -> None:
    """So many batches were refused of what was served; threads have begun the next epoch, with some more."""
    ahead = options["readers"] + options["prefetch"] + 1 if options["workers"] else 0
    refused = dali.about["batches_refused"]
    assert isinstance(refused, int)
    assert batches <= refused <= batches + ahead


@pytest.fixture(scope="module")
def thousand() -> tuple[list[bytes], list[bytes], list[int]]:
    """1,000 sound images; the same with 37 of them broken; where."""
    small = [jpeg(textured(24 + k % 9, 20 + k % 7), quality=80, subsampling=k % 3) for k in range(60)]
    sound = [small[k % 60] for k in range(1000)]
    places = sorted(random.Random(37).sample(range(1000), 37))
    damaged = list(sound)
    for number, place in enumerate(places):
        damaged[place] = broken(number)
    return sound, damaged, places


@pytest.mark.parametrize("options", WORKERS, ids=IDS)
def test_raise_names_the_first_bad_sample_in_order(
    thousand: tuple[list[bytes], list[bytes], list[int]], options: dict[str, Any]
) -> None:
    _, damaged, places = thousand
    for seed in range(6):
        settings = {"batch_size": 40, "pipeline": imagenet_train(16), "seed": seed}
        caught = []
        for more in ({"backend": "torch"}, options):
            with open_loader(MemorySource(damaged), **{**settings, **more}) as loader:
                with pytest.raises(LoaderError) as error:
                    list(loader)
                caught.append((error.value.sample, error.value.code, error.value.path, loader.state_dict()["position"]))
                assert f"backend={more.get('backend', 'dali')}" in str(error.value)
        assert caught[0] == caught[1]
        assert caught[0][0] in places


@pytest.mark.parametrize("options", WORKERS, ids=IDS)
def test_of_a_thousand_exactly_the_bad_are_replaced(
    thousand: tuple[list[bytes], list[bytes], list[int]], options: dict[str, Any]
) -> None:
    sound, damaged, places = thousand
    settings = {"batch_size": 40, "pipeline": imagenet_train(16), "on_bad_sample": "replace"}
    ours = stream(MemorySource(damaged), backend="torch", **settings)
    clean = stream(MemorySource(sound), **settings)
    dali = stream(MemorySource(damaged), **settings, **options)
    assert_near(dali, ours)
    assert len(dali.index) == 1000
    assert sorted(sample for sample, *_ in dali.bad) == places
    assert not set(dali.index.tolist()) & set(places)
    kept = ~np.isin(clean.index, places)
    assert kept.sum() == 963
    assert np.array_equal(dali.pixels[kept], clean.pixels[kept])
    # A batch is refused once, however many of its rows are broken: by its own samples or by a first substitute.
    hit = set()
    for number, sample in enumerate(clean.index.tolist()):
        while damaged[sample] in NOT_EVEN_A_HEADER:
            sample = (sample + 1) % 1000
        if sample in places:
            hit.add(number // 40)
    assert_refused(dali, len(hit), options)
    assert clean.about["batches_refused"] == 0


LAYOUTS: dict[str, list[int]] = {
    "a whole batch": list(range(8, 16)),
    "in the first batch": [0, 7],
    "in the last batch": [38, 39],
    "in two batches running": [9, 17, 22],
    "the substitute too": [3, 4, 5, 31, 32],
    "every other one": list(range(0, 40, 2)),
    "all but one": list(range(1, 40)),
}


@pytest.mark.parametrize("options", WORKERS, ids=IDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_wherever_the_bad_ones_are_the_stream_is_that_of_the_torch_backend(
    layout: str, options: dict[str, Any]
) -> None:
    places = LAYOUTS[layout]
    items = [undecodable(photo(k), KINDS[k % len(KINDS)]) if k in places else photo(k) for k in range(40)]
    assert all(refused_by_dali(items[place]) for place in places)
    cases: list[dict[str, Any]] = [
        {"batch_size": 8, "shuffle": False},
        {"batch_size": 1, "shuffle": False},
        {"batch_size": 12, "shuffle": False, "drop_last": False},
        {"batch_size": 12, "pipeline": imagenet_eval(32)},
    ]
    for case in cases:
        settings = {"on_bad_sample": "replace", **case}
        ours = stream(MemorySource(items), backend="torch", **settings)
        dali = stream(MemorySource(items), **settings, **options)
        assert_near(dali, ours)
        assert sorted(sample for sample, *_ in dali.bad) == places
        assert_refused(dali, len({place // case["batch_size"] for place in places}), options)


@pytest.mark.parametrize("options", WORKERS, ids=IDS)
def test_damage_that_is_repaired_is_served_as_on_the_torch_backend(options: dict[str, Any]) -> None:
    items = [repairable(photo(k), k) if k % 2 else photo(k) for k in range(48)]
    items += [repairable(jpeg(textured(61, 83), progressive=True), k) for k in range(8)]
    settings = {"batch_size": 8, "on_bad_sample": "replace"}
    ours = stream(MemorySource(items), epochs=2, backend="torch", **settings)
    dali = stream(MemorySource(items), epochs=2, **settings, **options)
    assert ours.bad == []
    assert_taken(dali, ours)


@pytest.mark.parametrize("options", WORKERS, ids=IDS)
def test_what_only_dali_refuses_is_decoded_by_us(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    """As a GPU's decoder may: such a batch is made without DALI, bit for bit torch's, and nothing is called bad."""
    items = [photo(k) for k in range(40)]
    feed = DaliGraph.feed

    def fail_on_17(graph: DaliGraph, tasks: Any) -> None:
        if any(task.data is items[17] for task in tasks):
            tasks = [task._replace(data=undecodable(items[17], KINDS[0])) for task in tasks]
        feed(graph, tasks)

    ours = stream(MemorySource(items), backend="torch", batch_size=8)
    monkeypatch.setattr(DaliGraph, "feed", fail_on_17)
    dali = stream(MemorySource(items), batch_size=8, **options)
    assert_near(dali, ours)
    at = int(np.flatnonzero(ours.index == 17)[0]) // 8
    rows = slice(8 * at, 8 * at + 8)
    assert np.array_equal(dali.pixels[rows], ours.pixels[rows])
    assert not np.array_equal(dali.pixels, ours.pixels)
    assert dali.bad == []
    assert_refused(dali, 1, options)


# ---- growth ----


SLACK = 12 << 20  # bytes that a process of threads may gain by chance


def footprint() -> tuple[int, int, int]:
    """Bytes of memory, threads and descriptors, once the threads come and go no more; 5 s at most.

    Memory of no file: pages of a library are this process's alone or not as other processes come and go.
    """
    me, deadline, counts = psutil.Process(), time.monotonic() + 5, [0]
    while time.monotonic() < deadline and (len(counts) < 10 or len(set(counts[-10:])) > 1):
        counts.append(me.num_threads())
        time.sleep(0.02)
    gc.collect()
    memory = me.memory_info()
    return memory.rss - memory.shared, me.num_threads(), me.num_fds()


def assert_flat(before: tuple[int, int, int]) -> None:
    after = footprint()
    assert after[0] - before[0] < SLACK, f"{(after[0] - before[0]) / 2**20:.1f} MiB more"
    assert after[1:] == before[1:]


@pytest.mark.slow
@pytest.mark.parametrize("options", WORKERS, ids=IDS)
def test_refused_batches_leave_nothing_behind(options: dict[str, Any]) -> None:
    items = [undecodable(photo(k), KINDS[0]) if k % 4 == 1 else photo(k) for k in range(40)]
    settings = {"batch_size": 4, "shuffle": False, "on_bad_sample": "replace"}
    with open_loader(MemorySource(items), **settings, **options) as loader:
        batches = itertools.chain.from_iterable(loader.batches() for _ in itertools.count())
        for _ in itertools.islice(batches, 30):
            pass
        before = footprint()
        for _ in itertools.islice(batches, 200):
            pass
        assert_flat(before)
        assert loader.describe()["batches_refused"] >= 230  # type: ignore[operator]


@pytest.mark.slow
def test_loaders_that_are_opened_and_closed_leave_nothing_behind(photos: Path) -> None:
    for round_ in range(300):
        loader = open_loader(photos, batch_size=4, **WORKERS[round_ % 2])
        for _ in itertools.islice(loader, 3):
            pass
        loader.close()
        if round_ == 29:
            before = footprint()
    assert_flat(before)
    assert not threads()


@pytest.mark.parametrize("ending", ["dropped", "closed"])
@pytest.mark.parametrize("options", WORKERS, ids=IDS)
def test_a_loader_that_is_done_with_takes_all_threads_along(photos: Path, options: dict[str, Any], ending: str) -> None:
    """Its own and DALI's."""
    started = psutil.Process().num_threads()
    loader = open_loader(photos, batch_size=4, **options)
    next(iter(loader))
    assert len(threads()) == (3 if options["workers"] else 0)
    assert psutil.Process().num_threads() > started
    if ending == "closed":
        loader.close()
    else:
        del loader
        gc.collect()
    assert eventually(lambda: not threads() and psutil.Process().num_threads() <= started)


def test_two_loaders_at_once_serve_what_each_serves_alone(photos: Path) -> None:
    train = {"batch_size": 8, "workers": 2, "prefetch": 3}
    val = {"batch_size": 10, "workers": 2, "pipeline": imagenet_eval(24)}
    alone = [stream(photos, **settings) for settings in (train, val)]
    with open_loader(photos, **train) as one, open_loader(photos, **val) as two:
        for _ in range(2):
            both = list(itertools.zip_longest(one.batches(), two.batches()))
            for number, expected in enumerate(alone):
                served = np.concatenate([pixels_of(pair[number]) for pair in both if pair[number] is not None])
                if number == 1 or one.epoch == 1:
                    assert np.array_equal(served, expected.pixels)


# ---- faults ----


@pytest.mark.slow
def test_a_program_that_ends_in_mid_epoch_ends_well(photos: Path, tmp_path: Path) -> None:
    """Each way of ending several times, with threads and without; DALI has an atexit handler of its own."""
    script = Path(dali_endings.__file__)
    command = [sys.executable, "-W", "error", str(script), str(photos), "6", str(tmp_path / "told")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    ends = {
        "leaves": (0, 0, ""),
        "raises": (1, 1, "ValueError: of the user's own"),
        "interrupted": (-signal.SIGINT, 1, "KeyboardInterrupt"),
    }
    seen = json.loads(done.stdout)
    assert [ending for ending, *_ in seen] == [ending for ending, _ in dali_endings.CASES]
    for ending, code, seconds, told in seen:
        assert (code, told.count("Traceback"), (told.splitlines() or [""])[-1]) == ends[ending], told
        assert seconds < 10


def engine_of(source: Any, **options: Any) -> DaliEngine:
    schedule = Schedule(n=len(source), batch_size=4, seed=7, rank=0, world_size=1, shuffle=True, drop_last=True)
    settings = ProducerSettings(
        source=source,
        pipeline=imagenet_train(16),
        schedule=schedule,
        decoder="auto",
        substitute=False,
        evaluation=False,
    )
    return DaliEngine(settings, DaliOptions(**options))


@pytest.mark.parametrize("method", ["take", "feed", "_built"])
def test_ctrl_c_within_dali_loses_no_batch(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    engine = engine_of(MemorySource([photo(k) for k in range(48)]), workers=0)
    engine.seek(Cursor(0, 0))
    expected = [engine.next() for _ in range(12)]
    engine.seek(Cursor(0, 0))
    undisturbed, calls, interrupted, served = getattr(DaliGraph, method), 0, 0, []

    def at_times(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 3 == 2:
            raise KeyboardInterrupt
        return undisturbed(*arguments, **named)

    monkeypatch.setattr(DaliGraph, method, at_times)
    while len(served) < 12:
        try:
            served.append(engine.next())
        except KeyboardInterrupt:
            interrupted += 1
        if method == "_built":
            engine._stage.close()  # so that a graph is built for each batch
    engine.close()
    assert interrupted >= 2
    assert [batch.index.tolist() for batch in served] == [batch.index.tolist() for batch in expected]
    assert all(torch.equal(one.images, two.images) for one, two in zip(served, expected, strict=True))


@pytest.mark.parametrize("options", WORKERS, ids=IDS)
def test_after_ctrl_c_the_state_leads_to_the_same_batch(
    photos: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    whole = stream(photos, batch_size=8)
    name = "_take" if options["workers"] else "_make"
    undisturbed = getattr(DaliEngine, name)
    with open_loader(photos, batch_size=8, **options) as loader:
        batches = loader.batches()
        served = [pixels_of(next(batches)) for _ in range(2)]

        def interrupt(engine: DaliEngine) -> None:
            if undisturbed(engine) is not None:  # the batch is lost
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(DaliEngine, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(batches)
        loader.load_state_dict(loader.state_dict())
        served += [pixels_of(batch) for batch in loader.batches()]
    assert np.array_equal(np.concatenate(served), whole.pixels)


@pytest.mark.timeout(60)
def test_dali_that_hangs_is_given_up(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, take = threading.Event(), DaliGraph.take

    def hang(graph: DaliGraph) -> torch.Tensor:
        if threading.current_thread().name == "penstock-dali":
            go_on.wait(60)
        return take(graph)

    loader = open_loader(photos, batch_size=8, workers=2, watchdog_s=1.0)
    batches = loader.batches()
    next(batches)
    monkeypatch.setattr(DaliGraph, "take", hang)
    started = time.monotonic()
    with pytest.raises(LoaderError, match=r"E-TIMEOUT.*backend=dali rank=0.*no thread has made progress for 1 s"):
        list(batches)
    loader.close()
    assert time.monotonic() - started < 10
    go_on.set()
    assert eventually(lambda: not threads())


@pytest.mark.timeout(60)
def test_a_read_that_never_returns_is_named(tmp_path: Path) -> None:
    fifo = tmp_path / "dead storage"
    os.mkfifo(fifo)
    source = FaultySource(48, {17: OpenFifo(str(fifo))})
    with open_loader(source, batch_size=4, workers=2, watchdog_s=1.0) as loader:
        with pytest.raises(LoaderError, match=r"E-TIMEOUT\] sample=17 path='memory/17.jpg' backend=dali"):
            list(loader)
        with open(fifo, "wb"):  # let the thread go
            pass
    assert eventually(lambda: not threads())


def fail_with(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("options", WORKERS, ids=IDS)
@pytest.mark.parametrize(
    ("method", "error", "line"),
    [
        ("take", MemoryError("no room"), r"E-WORKER\] backend=dali rank=0 cause=MemoryError: no room"),
        ("feed", TypeError("a float"), r"E-WORKER\] backend=dali rank=0 cause=TypeError: a float"),
        ("_built", RuntimeError("no\nfonts"), r"E-DEPENDENCY\] backend=dali rank=0 cause=.*on the CPU: no fonts"),
        ("_built", RuntimeError("failed to allocate"), r"E-MEM\] backend=dali rank=0 cause=DALI: failed to allocate"),
    ],
    ids=["take", "feed", "build", "memory"],
)
def test_whatever_dali_raises_is_one_line_that_names_the_backend(
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    error: Exception,
    line: str,
    options: dict[str, Any],
) -> None:
    with open_loader(photos, batch_size=8, **options) as loader:
        if method != "_built":  # in the middle of the epoch
            next(iter(loader))
        monkeypatch.setattr(DaliGraph, method, fail_with(error))
        with pytest.raises(LoaderError, match=line) as caught:
            list(loader)
        assert caught.value.__cause__ is error
        assert "\n" not in str(caught.value)
    assert eventually(lambda: not threads())


def test_what_a_source_raises_is_told_with_its_sample() -> None:
    def divide() -> None:
        _ = 1 // 0

    for options in WORKERS:
        loader = open_loader(FaultySource(48, {11: divide}), batch_size=4, **options)
        with loader, pytest.raises(LoaderError, match=r"E-DATASET\] sample=11 .*backend=dali.*ZeroDivisionError"):
            list(loader)


def test_an_error_of_a_second_look_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source breaks while a batch that DALI refused is made again."""
    items = [photo(k) for k in range(40)]
    items[20] = undecodable(photo(20), KINDS[0])
    for options in WORKERS:
        reads = itertools.count()
        at = {21: lambda reads=reads: next(reads) and 1 // 0}
        settings = {"batch_size": 8, "shuffle": False, "on_bad_sample": "replace"}
        with open_loader(MemorySource(items, at), **settings, **options) as loader:
            with pytest.raises(LoaderError, match=r"E-DATASET\] sample=21 .*backend=dali.*ZeroDivisionError"):
                list(loader)
            assert loader.state_dict()["position"] == 16


def test_close_while_dali_repeats_a_batch_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [undecodable(photo(k), KINDS[0]) if k % 8 == 1 else photo(k) for k in range(64)]
    repaired = dali_stage.DaliStage._repaired
    for _ in range(10):
        begun = threading.Event()

        def slowly(stage: Any, sent: Any, begun: threading.Event = begun) -> Any:
            begun.set()
            return repaired(stage, sent)

        monkeypatch.setattr(dali_stage.DaliStage, "_repaired", slowly)
        loader = open_loader(MemorySource(items), batch_size=8, workers=2, prefetch=3, on_bad_sample="replace")
        next(loader.batches())
        assert begun.wait(10)
        started = time.monotonic()
        loader.close()
        assert time.monotonic() - started < 5
        assert eventually(lambda: not threads())


def test_a_device_that_is_not_there_is_one_line(photos: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(LoaderError, match=r"E-DEPENDENCY.*device 'cuda'.*no CUDA device") as caught:
        open_loader(photos, device="cuda", batch_size=8)
    assert caught.value.exit_code == 7
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"workers": -1},
        {"readers": 0},
        {"prefetch": 0},
        {"watchdog_s": 0},
        {"hw_decoder_load": 1.1},
        {"hw_decoder_load": -0.1},
        {"hw_decoder_load": float("nan")},
        {"preallocate": (640,)},
        {"preallocate": 640},
        {"workers": "two"},
        {"preallocate": (640, -1)},
        {"device_memory_padding": -1},
        {"host_memory_padding": -1},
        {"start_method": "spawn"},
        {"encoding": "raw"},
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused_by_name(photos: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        create_loader(photos, backend="dali", batch_size=8, **wrong)


@pytest.mark.parametrize("version", [None, "1.0"])
def test_a_loader_without_dali_is_not_made(photos: Path, monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    if version is None:
        monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    else:
        monkeypatch.setattr(sys.modules["nvidia.dali"], "__version__", version)
    with pytest.raises(LoaderError, match=r"E-DEPENDENCY.*pip install 'penstock\[dali-cuda"):
        open_loader(photos, batch_size=8)


# ---- on the device ----


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
@pytest.mark.parametrize("options", WORKERS, ids=IDS)
def test_the_device_serves_the_hosts_stream(photos: Path, dtype: torch.dtype, options: dict[str, Any]) -> None:
    settings = {"batch_size": 12, "dtype": dtype, "pipeline": imagenet_train(64)}
    level = 2.0 if dtype == torch.uint8 else 2.0 / 255 / 0.22
    with (
        open_loader(photos, **settings) as host,
        open_loader(photos, device="cuda", **settings, **options) as device,
    ):
        assert device.describe()["decodes_on"] == "cuda"
        for _ in range(2):
            for one, two in itertools.zip_longest(host.batches(), device.batches()):
                assert (two.images.device.type, two.labels.device.type) == ("cuda", "cuda")
                assert (two.images.dtype, two.images.shape) == (dtype, one.images.shape)
                assert two.images.is_contiguous(memory_format=torch.channels_last)
                assert torch.equal(one.labels, two.labels.cpu())
                for name in ("index", "windows", "flips"):
                    assert np.array_equal(getattr(one, name), getattr(two, name))
                assert (one.images.double() - two.images.cpu().double()).abs().mean() <= level


@pytest.mark.gpu
def test_images_are_made_on_the_device_and_never_leave_it(photos: Path) -> None:
    with open_loader(photos, batch_size=12, device="cuda", workers=2) as loader:
        loader._engine.seek(Cursor(0, 0))
        batch = loader._engine.next()
    assert batch.resident
    assert batch.images.device.type == "cuda"


@pytest.mark.gpu
def test_kept_batches_are_not_overwritten_on_the_device(photos: Path) -> None:
    with open_loader(photos, batch_size=4, device="cuda", workers=2) as loader:
        kept = [batch.images for _ in range(3) for batch in loader.batches()]
        copies = [images.clone() for images in kept[:12]]
        again = [batch.images for _ in range(2) for batch in loader.batches()]
        assert all(torch.equal(one, two) for one, two in zip(kept, copies, strict=False))
    assert len(again) == 24


@pytest.mark.gpu
def test_bad_samples_on_the_device_are_those_of_the_host() -> None:
    items = [undecodable(photo(k), KINDS[0]) if k in (3, 4, 17) else photo(k) for k in range(40)]
    settings = {"batch_size": 8, "on_bad_sample": "replace"}
    ours = stream(MemorySource(items), backend="torch", **settings)
    for options in WORKERS:
        dali = stream(MemorySource(items), device="cuda", **settings, **options)
        assert_near(dali, ours, level=4.0)


@pytest.mark.gpu
def test_memory_of_the_device_stays_as_it_is(photos: Path) -> None:
    with open_loader(photos, batch_size=12, device="cuda", workers=2) as loader:
        batches = itertools.chain.from_iterable(loader.batches() for _ in itertools.count())
        for number, _ in enumerate(itertools.islice(batches, 70)):
            if number == 19:
                torch.cuda.synchronize()
                before = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]
        torch.cuda.synchronize()
        after = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]
    assert after[0] - before[0] < 32 << 20
    assert before[1] - after[1] < 32 << 20
