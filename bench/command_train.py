"""`penstock train`: train a classifier on a folder of images."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.bench import options as common

if TYPE_CHECKING:
    from penstock.bench.train import EpochReport


def train(
    data: common.Data,
    validation: Annotated[
        Path | None, typer.Option(help="Folder to validate on; DATA/val beside DATA/train by default.")
    ] = None,
    model: Annotated[str, typer.Option(help="resnet18, resnet50, or a timm name.")] = "resnet18",
    epochs: Annotated[int, typer.Option(min=1, help="Epochs.")] = 10,
    backend: common.Backend = "torch",
    cache: Annotated[Path | None, typer.Option(help="Folder for train.h5 and val.h5, with backend hdf5.")] = None,
    decoder: common.Decoder = "auto",
    workers: common.Workers = None,
    batch_size: common.BatchSize = 32,
    size: common.Size = 64,
    min_scale: Annotated[float, typer.Option(help="Smallest area of a random crop, as a fraction.")] = 0.25,
    auto_augment: Annotated[
        str | None, typer.Option(help="rand (RandAugment) or trivial (TrivialAugmentWide).")
    ] = None,
    color_jitter: Annotated[
        tuple[float, float, float, float] | None,
        typer.Option(metavar="B C S H", help="Jitter of brightness, contrast, saturation and hue, such as .4 .4 .4 .1"),
    ] = None,
    erasing: Annotated[float, typer.Option(help="Probability that a box of an image is erased.")] = 0.0,
    mixup: Annotated[float, typer.Option(help="Alpha of mixup, such as 0.2; 0 for none.")] = 0.0,
    cutmix: Annotated[float, typer.Option(help="Alpha of cutmix, such as 1; 0 for none.")] = 0.0,
    device: common.Device = "auto",
    amp: Annotated[str, typer.Option(help="Mixed precision: off, bf16 or fp16 (CUDA).")] = "off",
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 0.05,
    seed: common.Seed = 0,
    on_bad_sample: Annotated[str, typer.Option(help="raise or replace.")] = "raise",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report here.")] = None,
) -> None:
    """Train on DATA (or DATA/train, validated on DATA/val): loss, accuracy, images/s and waiting, epoch by epoch."""
    from penstock.bench.models import create_model
    from penstock.bench.train import train as run
    from penstock.bench.train_settings import TrainSettings
    from penstock.loaders import create_loader
    from penstock.loaders.source import open_source
    from penstock.pipelines import imagenet_eval, imagenet_train

    if validation is None and common.training_folder(data) != data:
        validation = data / "val"
    data = common.training_folder(data)
    target = common.resolve_device(device)
    if workers is None and target == "cpu":
        workers = 1  # the model's threads want the processors, and it is far slower than one worker
    settings = TrainSettings(
        model=model,
        device=target,
        epochs=epochs,
        lr=lr,
        amp=amp,  # type: ignore[arg-type]
        small_inputs=size <= 32 and model.startswith("resnet"),
        seed=seed,
    )
    source = open_source(data)
    held_out = open_source(validation) if validation else None
    if held_out is not None and held_out.classes != source.classes:
        raise ValueError(f"{validation} has other classes than {data}: their labels would not mean the same")
    print(source.describe())
    network = create_model(model, max(2, len(source.classes)), small_inputs=settings.small_inputs, seed=seed)
    shared = {"backend": backend, "decoder": decoder, "device": target, "seed": seed, **common.given(workers=workers)}
    loader = create_loader(
        source,
        pipeline=imagenet_train(
            size,
            scale=(min_scale, 1.0),
            auto_augment=auto_augment,
            color_jitter=color_jitter,
            erasing=erasing,
            mixup=mixup,
            cutmix=cutmix,
        ),
        batch_size=batch_size,
        on_bad_sample=on_bad_sample,
        **shared,
        **common.given(cache=cache and cache / "train.h5"),
    )

    with loader:
        if held_out is None:
            report = run(network, loader, settings, on_epoch=_tell)
        else:
            with create_loader(
                held_out,
                pipeline=imagenet_eval(size),
                batch_size=batch_size,
                **shared,
                **common.given(cache=cache and cache / "val.h5"),
            ) as judge:
                report = run(network, loader, settings, validation=judge, on_epoch=_tell)
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(asdict(report), indent=2) + "\n")


def _tell(report: EpochReport) -> None:
    accuracy = f"  accuracy {report.validation.accuracy:6.1%}" if report.validation else ""
    rate = f"  {report.images_per_s.median:7,.0f} images/s" if report.images_per_s else ""
    waiting = f"  waiting {report.wait_share:4.0%}  {report.seconds:5.1f} s"
    print(f"epoch {report.epoch + 1:3d}  loss {report.loss:.4f}{accuracy}{rate}{waiting}", flush=True)
