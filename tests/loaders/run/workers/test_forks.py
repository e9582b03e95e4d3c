"""Processes forked from one with a loader's workers: they disturb nothing, and can serve their own loaders."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker, util
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_child import ForkedChild
from numbered_dataset import Numbered
from processes import child_pids, eventually

from penstock.loaders import DataLoader, LoaderError, create_loader
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.front.loader import Loader
from penstock.loaders.run.workers.leftovers import sweep
from penstock.pipelines import imagenet_train

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
ENGINES: dict[str, dict[str, Any]] = {
    "processes": {"backend": "torch"},
    "threads": {"backend": "hdf5", "workers_are": "threads"},
}
Wait = Callable[[], None]


@pytest.fixture(params=ENGINES)
def loader(request: pytest.FixtureRequest, photos: Path) -> Iterator[Loader]:
    with open_loader(photos, **ENGINES[request.param]) as made:
        yield made


def open_loader(photos: Path, **settings: Any) -> Loader:
    defaults = {"pipeline": imagenet_train(32), "batch_size": 4, "dtype": torch.uint8, "seed": 7, "workers": 2}
    if settings.get("backend") == "hdf5":
        settings["cache"] = photos.with_suffix(".h5")
    if settings.get("backend") != "dali":
        settings.setdefault("workers_are", "processes")
    return create_loader(photos, **{**defaults, **settings})


def served(loader: Any) -> list[list[int]]:
    return [batch.index.tolist() for batch in loader.batches()]


def refusal(action: Callable[[], object]) -> str:
    """Return the error of an action that is refused."""
    try:
        action()
    except LoaderError as error:
        return f"{error.code} {error.cause}"
    return "no error"


def test_a_batch_held_by_a_child_does_not_change(photos: Path) -> None:
    with open_loader(photos) as loader:
        stream = iter(loader)
        held = [next(stream)[0]]
        before = held[0].clone()

        def look(wait: Wait) -> bool:
            wait()
            return torch.equal(held[0], before)

        child = ForkedChild(look)
        child.waits()
        held.clear()
        for _ in (*stream, *loader):  # every slot is used several times
            pass
        child.go_on()
        assert child.result()


def test_a_child_that_leaves_the_loader_does_not_affect_the_parent(photos: Path, loader: Loader) -> None:
    with open_loader(photos) as undisturbed:
        expected = served(undisturbed)
    stream = loader.batches()
    found = [next(stream).index.tolist()]
    workers = child_pids()

    def leave(wait: Wait) -> list[str]:
        with loader:
            told = [refusal(lambda: next(stream)), refusal(lambda: next(iter(loader)))]
        util._exit_function()  # type: ignore[attr-defined]  # as at the end of a program
        return told

    told = ForkedChild(leave).result()
    assert [words.split(" ", 1)[0] for words in told] == ["E-MISUSE"] * 2
    assert str(os.getpid()) in told[0]
    assert "closed" not in told[0]
    assert child_pids() == workers
    found += [batch.index.tolist() for batch in stream]
    assert found == expected


def test_a_forked_child_can_close_a_loader_that_a_thread_reads(photos: Path) -> None:
    """Without workers: the thread holds the loader's locks at the fork and does not exist in the child."""
    reading, go_on = threading.Event(), threading.Event()

    class Slow(ImageFolder):
        """Waits in the middle of a batch."""

        def read(self, index: int) -> Any:
            reading.set()
            go_on.wait()
            return super().read(index)

    loader = create_loader(Slow(photos), pipeline=imagenet_train(32), batch_size=4, workers=0)
    thread = threading.Thread(target=lambda: next(iter(loader)), daemon=True)
    thread.start()
    assert reading.wait(60)
    pid = os.fork()
    if pid == 0:
        loader.close()
        os._exit(0)
    ended = eventually(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid, 30)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    go_on.set()
    thread.join()
    loader.close()
    assert ended


def test_a_forked_child_uses_no_lock_of_the_threads(photos: Path) -> None:
    """A lock that a thread held at the fork stays locked in the child."""
    with open_loader(photos, **ENGINES["threads"]) as loader:
        next(iter(loader))
        engine: Any = loader._engine
        held, over = threading.Event(), threading.Event()

        def hold() -> None:
            with engine.queue.changed:
                held.set()
                over.wait(60)

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(60)
        child = ForkedChild(lambda wait: engine.close())
        assert child.result() is None
        over.set()
        thread.join()
        assert len(list(loader)) == len(loader)


def test_the_drop_in_loader_starts_workers_in_a_forked_child() -> None:
    with DataLoader(Numbered(24), 2, num_workers=1, persistent_workers=True) as loader:
        stream = iter(loader)
        counted = next(stream).tolist()

        def go_on(wait: Wait) -> list[Any]:
            told = refusal(lambda: next(stream))
            numbers = [batch.tolist() for batch in loader]
            loader.close()
            return [told, len(numbers)]

        told, batches = ForkedChild(go_on).result()
        assert told.startswith("E-MISUSE")
        assert str(os.getpid()) in told
        assert batches == 12
        counted += [number for batch in stream for number in batch.tolist()]
    assert counted == list(range(24))


def names_left(pid: int) -> list[str]:
    """Names with the process id in the folders of semaphores and of temporary files."""
    semaphores = [name for name in os.listdir("/dev/shm") if f"-{pid}-" in name]
    folders = Path(tempfile.gettempdir()).glob("pymp-*/penstock-owner")
    return semaphores + [str(folder) for folder in folders if f"-{pid}-" in os.readlink(folder)]


def test_leftovers_of_a_killed_group_are_removed(photos: Path) -> None:
    with open_loader(photos) as loader:
        next(iter(loader))

        def serve(wait: Wait) -> None:
            vars(resource_tracker._resource_tracker).update(_fd=None, _pid=None)  # its own tracker, which dies with it
            with open_loader(photos, dtype=torch.float32) as own:
                assert len(list(own)) == len(own)
                wait()

        child = ForkedChild(serve, group=True)
        child.waits()
        mine, its = names_left(os.getpid()), names_left(child.pid)
        assert len(its) > 5  # a folder, and at least the semaphores of two queues
        sweep()
        assert names_left(child.pid) == its  # the child is alive
        child.kill_group()
        sweep()
        assert names_left(child.pid) == []
        assert names_left(os.getpid()) == mine
        assert len(list(loader)) == len(loader)


def test_forked_workers_remove_their_temporary_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each worker, multiprocessing listens in a folder that is unknown to the parent, which cannot remove it."""
    with tempfile.TemporaryDirectory() as folder:  # a short name, because of the length limit of sockets
        monkeypatch.setattr(tempfile, "tempdir", folder)

        def serve(wait: Wait) -> None:
            with DataLoader(
                Numbered(24), 2, num_workers=2, persistent_workers=True, multiprocessing_context="fork"
            ) as it:
                next(iter(it))
                wait()

        child = ForkedChild(serve, group=True)
        try:
            child.waits()
            both = eventually(lambda: len(list(Path(folder).glob("pymp-*/listener-*"))) == 2)
        finally:
            os.killpg(child.pid, signal.SIGTERM)  # the workers leave the signal to their parent
            os.waitpid(child.pid, 0)
        assert both
        assert eventually(lambda: not os.listdir(folder)), os.listdir(folder)


def test_the_temporary_folder_of_a_killed_worker_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        with DataLoader(Numbered(24), 2, num_workers=2, persistent_workers=True, multiprocessing_context="fork") as it:
            before = child_pids()
            stream = iter(it)
            next(stream)
            os.kill(min(child_pids() - before), signal.SIGKILL)
            with pytest.raises(LoaderError, match="E-WORKER"):
                list(stream)
        assert os.listdir(folder) == []
