"""Loaders in Lightning's Trainer and with Hugging Face Accelerate: checkpoints contain the position in the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset, get_worker_info

from penstock.loaders import DataLoader, create_loader, with_fields
from penstock.loaders.front.loader import Loader
from penstock.pipelines import imagenet_eval, imagenet_train

# From both packages: about torch's pytree, worker counts that they read only from torch's DataLoader, and folders.
pytestmark = pytest.mark.filterwarnings("ignore")
SIZE, BATCH, EPOCHS, NUM_PHOTOS = 16, 12, 2, 40
Seen = list[tuple[int, list[int]]]
Run = Callable[..., tuple[Seen, torch.Tensor]]


def open_loader(photos: Path, **settings: Any) -> Loader:
    defaults = {"pipeline": imagenet_train(SIZE), "batch_size": BATCH, "seed": 3, "workers": 0, "with_index": True}
    return create_loader(photos, **{**defaults, **settings})


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 8))


def checkpointing_trainer(folder: Path, stop: int) -> Any:
    """A Trainer that saves a checkpoint after every step."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    saved = ModelCheckpoint(dirpath=folder, save_top_k=-1, every_n_train_steps=1, filename="{step}")
    return lightning.Trainer(
        accelerator="cpu",
        callbacks=[saved],
        default_root_dir=folder,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
        max_epochs=EPOCHS,
        max_steps=stop,
        num_sanity_val_steps=0,
    )


def with_lightning(photos: Path, folder: Path, *, stop: int = -1, resume: Path | None = None, **settings: Any) -> Any:
    """Return (epoch and indices of each batch, final weights) of a run with a checkpoint after every step."""
    import lightning

    class Classifier(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = network()
            self.seen: Seen = []
            self.judged: list[int] = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            images, labels, index = batch
            self.seen.append((self.current_epoch, index.tolist()))
            return nn.functional.cross_entropy(self.net(images), labels)

        def validation_step(self, batch: Any, _: int) -> None:
            self.judged += [place for place in batch[2].tolist() if place >= 0]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    trainer, classifier = checkpointing_trainer(folder, stop), Classifier()
    with open_loader(photos, **settings) as loader, open_loader(photos, pipeline=imagenet_eval(SIZE)) as judge:
        trainer.fit(classifier, loader, judge, ckpt_path=resume and resume / f"step={stop_of(resume)}.ckpt")
    epochs = len(classifier.judged) // 40
    assert classifier.judged == list(range(40)) * epochs  # every validation serves all samples once
    return classifier.seen, classifier.net[1].weight.detach()


def stop_of(folder: Path) -> int:
    """Return the last step with a checkpoint."""
    return max(int(path.stem.partition("=")[2]) for path in folder.glob("step=*.ckpt"))


def with_accelerate(photos: Path, folder: Path, *, stop: int = -1, resume: Path | None = None, **settings: Any) -> Any:
    """The same with a custom loop and one checkpoint at `stop`."""
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    model = network()
    seen: Seen = []
    with open_loader(photos, **settings) as loader:
        net, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.01))
        accelerator.register_for_checkpointing(loader)
        if resume is not None:
            accelerator.load_state(str(resume))
        while loader.epoch < EPOCHS and len(seen) != stop:
            epoch = loader.epoch
            for images, labels, index in loader:
                accelerator.backward(nn.functional.cross_entropy(net(images), labels))
                optimizer.step()
                optimizer.zero_grad()
                seen.append((epoch, index.tolist()))
                if len(seen) == stop:
                    accelerator.save_state(str(folder))
                    break
    return seen, model[1].weight.detach()


@pytest.fixture(scope="module")
def whole_runs(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Run, tuple[Seen, torch.Tensor]]:
    runs: tuple[Run, ...] = (with_lightning, with_accelerate)
    return {run: run(photos, tmp_path_factory.mktemp("whole")) for run in runs}


@pytest.mark.parametrize("run", [with_lightning, with_accelerate])
@pytest.mark.parametrize("stop", [1, 3, 5], ids=["first step", "end of an epoch", "middle of the second"])
def test_a_checkpoint_of_any_step_continues_the_stream_and_the_training(
    photos: Path, tmp_path: Path, run: Run, stop: int, whole_runs: dict[Run, tuple[Seen, torch.Tensor]]
) -> None:
    whole, weights = whole_runs[run]
    assert len(whole) == EPOCHS * (40 // BATCH)
    head, _ = run(photos, tmp_path / "head", stop=stop)
    tail, continued = run(photos, tmp_path / "tail", resume=tmp_path / "head")
    assert head == whole[:stop]
    assert tail == whole[stop:]
    assert torch.equal(weights, continued)


@pytest.mark.parametrize("has_fields", [False, True], ids=["pairs", "fields"])
def test_trainers_move_a_batch_and_keep_it(photos: Path, *, has_fields: bool) -> None:
    from accelerate.utils import find_batch_size, recursively_apply, send_to_device
    from lightning.fabric.utilities.apply_func import move_data_to_device
    from lightning.pytorch.utilities.data import extract_batch_size

    data = with_fields(photos, text=list(map(str, range(NUM_PHOTOS)))) if has_fields else photos
    with open_loader(data) as loader:
        batch = next(iter(loader))
    meta = torch.device("meta")
    for moved in (send_to_device(batch, meta, non_blocking=True), move_data_to_device(batch, meta)):
        assert type(moved) is type(batch)
        assert {each.device for each in (moved.images, moved.labels, moved["index"])} == {meta}
        assert moved.fields == batch.fields
        assert moved.index is batch.index
    assert find_batch_size(batch) == extract_batch_size(batch) == BATCH
    shapes = recursively_apply(lambda tensor: tensor.shape, batch)  # Accelerate's functions on tuples and dicts
    assert type(shapes) is (dict if has_fields else tuple)


def test_distributed_data_parallel_takes_a_batch(photos: Path) -> None:
    """torch's functions that move the arguments of a parallel model."""
    from torch.distributed.utils import _recursive_to

    for data in (photos, with_fields(photos, text=list(map(str, range(NUM_PHOTOS))))):
        with open_loader(data) as loader:
            batch = next(iter(loader))
        (moved,) = _recursive_to(batch, torch.device("cpu"), use_side_stream_for_tensor_copies=False)
        assert type(moved) is (dict if isinstance(batch, dict) else tuple)
        parts = list(moved.values() if isinstance(moved, dict) else moved)
        assert [str(part) for part in parts] == [str(part) for part in batch.values()]


def test_skip_first_batches_of_accelerate_makes_no_skipped_batch(photos: Path) -> None:
    import accelerate

    with open_loader(photos, batch_size=5) as plain:
        first, second, third = ([(index.tolist(), images.sum()) for images, _, index in plain] for _ in range(3))
    with open_loader(photos, batch_size=5) as loader:

        def served(batches: Any) -> list[Any]:
            return [(index.tolist(), images.sum()) for images, _, index in batches]

        rest = accelerate.skip_first_batches(loader, 2)
        assert len(rest) == len(loader) - 2 == 6
        assert served(rest) == first[2:]
        assert loader.stats().images == 30  # skipped batches are not made
        assert served(loader) == second
        state = loader.state_dict()
        assert served(rest) == third[2:]
        loader.load_state_dict({**state, "position": 10})
        assert served(accelerate.skip_first_batches(loader, 3)) == third[5:]


class Numbers(IterableDataset[torch.Tensor]):
    """Ten samples, divided among the workers. Without a length Lightning would take one batch ahead of the step."""

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        yield from torch.arange(10.0)[info.id if info else 0 :: info.num_workers if info else 1]


DROP_INS: dict[str, Callable[[], DataLoader[Any]]] = {
    "shuffled": lambda: DataLoader(TensorDataset(torch.arange(10.0)), 2, shuffle=True, collate_fn=first_column),
    "iterable": lambda: DataLoader(Numbers(), 2, num_workers=1),
    "out of order": lambda: DataLoader(
        TensorDataset(torch.arange(10.0)), 2, num_workers=1, in_order=False, collate_fn=first_column
    ),
}


def first_column(samples: list[tuple[torch.Tensor]]) -> torch.Tensor:
    return torch.stack([sample for (sample,) in samples])


def fit_drop_in(kind: str, folder: Path, *, stop: int = -1, resume: bool = False) -> list[list[float]]:
    """Return the batches of a run with a checkpoint after every step, or of the rest of one."""
    import lightning

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net, self.seen = nn.Linear(1, 1), []

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            self.seen.append(batch.tolist())
            return self.net(batch[:, None]).sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.0)

    torch.manual_seed(2 + resume)
    trainer, module = checkpointing_trainer(folder, stop), Module()
    with DROP_INS[kind]() as loader:
        trainer.fit(module, loader, ckpt_path=folder / f"step={stop_of(folder)}.ckpt" if resume else None)
    return module.seen


@pytest.mark.parametrize("kind", DROP_INS)
def test_a_checkpoint_of_lightning_contains_the_position_of_the_drop_in_loader(kind: str, tmp_path: Path) -> None:
    whole = fit_drop_in(kind, tmp_path / "whole")
    head = fit_drop_in(kind, tmp_path / "head", stop=7)
    assert head == whole[:7]
    assert fit_drop_in(kind, tmp_path / "head", resume=True) == whole[7:]
    epochs = [sorted(x for batch in whole[first : first + 5] for x in batch) for first in (0, 5)]
    assert epochs == [torch.arange(10.0).tolist()] * 2


@pytest.mark.parametrize("seed", [None, 1])
def test_accelerate_serves_a_different_order_each_epoch(seed: int | None) -> None:
    import accelerate

    loader = DataLoader(TensorDataset(torch.arange(50)), 5, shuffle=True, seed=seed)
    prepared = accelerate.Accelerator(cpu=True).prepare(loader)
    epochs = [torch.cat([batch[0] for batch in prepared]).tolist() for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(50))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3
