"""Loaders in Lightning's Trainer and beside Hugging Face Accelerate: checkpoints that hold the place in the stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from photo_folder import write_folder
from torch import nn

from penstock.loaders import create_loader
from penstock.loaders.loader import Loader
from penstock.pipelines import imagenet_eval, imagenet_train

# Both packages' own: of torch's pytree, of worker counts that they look for in torch's DataLoader alone, of folders.
pytestmark = pytest.mark.filterwarnings("ignore")
SIZE, BATCH, EPOCHS = 16, 12, 2
Seen = list[tuple[int, list[int]]]
Run = Callable[..., tuple[Seen, torch.Tensor]]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), 40)


def open_loader(photos: Path, **settings: Any) -> Loader:
    defaults = {"pipeline": imagenet_train(SIZE), "batch_size": BATCH, "seed": 3, "workers": 0, "with_index": True}
    return create_loader(photos, **{**defaults, **settings})


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 8))


def with_lightning(photos: Path, folder: Path, *, stop: int = -1, resume: Path | None = None, **settings: Any) -> Any:
    """(epoch and indices of each batch, final weights) of a run that is checkpointed after every step."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

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

    saved = ModelCheckpoint(dirpath=folder, save_top_k=-1, every_n_train_steps=1, filename="{step}")
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        max_steps=stop,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
        callbacks=[saved],
    )
    classifier = Classifier()
    with open_loader(photos, **settings) as loader, open_loader(photos, pipeline=imagenet_eval(SIZE)) as judge:
        trainer.fit(classifier, loader, judge, ckpt_path=resume and resume / f"step={stop_of(resume)}.ckpt")
    epochs = len(classifier.judged) // 40
    assert classifier.judged == list(range(40)) * epochs  # every validation serves everything once
    return classifier.seen, classifier.net[1].weight.detach()


def stop_of(folder: Path) -> int:
    """The last step of which there is a checkpoint."""
    return max(int(path.stem.partition("=")[2]) for path in folder.glob("step=*.ckpt"))


def with_accelerate(photos: Path, folder: Path, *, stop: int = -1, resume: Path | None = None, **settings: Any) -> Any:
    """The same by a loop of one's own, with one checkpoint at `stop`."""
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


@pytest.mark.parametrize("run", [with_lightning, with_accelerate])
@pytest.mark.parametrize("stop", [1, 3, 5], ids=["first step", "end of an epoch", "middle of the second"])
def test_a_checkpoint_of_any_step_continues_the_stream_and_the_training(
    photos: Path, tmp_path: Path, run: Run, stop: int
) -> None:
    whole, weights = run(photos, tmp_path / "whole")
    assert len(whole) == EPOCHS * (40 // BATCH)
    head, _ = run(photos, tmp_path / "head", stop=stop)
    tail, continued = run(photos, tmp_path / "tail", resume=tmp_path / "head")
    assert head == whole[:stop]
    assert tail == whole[stop:]
    assert torch.equal(weights, continued)


@pytest.mark.parametrize("run", [with_lightning, with_accelerate])
def test_the_rest_may_be_served_by_another_backend_and_number_of_workers(
    photos: Path, tmp_path: Path, run: Run
) -> None:
    whole, _ = run(photos, tmp_path / "whole")
    head, _ = run(photos, tmp_path / "head", stop=2, workers=2)
    tail, _ = run(photos, tmp_path / "tail", resume=tmp_path / "head", backend="hdf5", cache=tmp_path / "x.h5")
    assert head + tail == whole
