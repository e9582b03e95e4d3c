"""Suggestions for names of settings that are misspelled or belong to another library."""

from __future__ import annotations

import difflib
from collections.abc import Collection

# Names in torch, timm, torchvision, FFCV, DALI and webdataset for settings that have another name here.
_OUR_NAMES = {
    "workers": ("num_workers", "nworkers", "n_workers", "num_threads", "py_num_workers"),
    "prefetch": ("prefetch_factor", "prefetch_queue_depth", "batches_ahead"),
    "batch_size": ("bs", "batch"),
    "watchdog_s": ("timeout",),
    "start_method": ("multiprocessing_context",),
    "batch_transform": ("collate_fn", "collate", "collation_fn"),
    "transform": ("transforms",),
    "tokenize": ("tokenizer", "text_transform", "tokenizer_fn"),
    "text": ("caption", "caption_key", "text_column", "caption_column", "csv_caption_key"),
    "shuffle": ("random_shuffle", "shuffle_buffer", "shardshuffle", "shuffle_files"),
    "device": ("device_id", "devices"),
    "dtype": ("fp16", "half", "amp", "img_dtype"),
    "memory_format": ("channels_last",),
    "world_size": ("num_replicas", "num_shards"),
    "rank": ("shard_id",),
    "pipeline": ("pipelines",),
    "label": ("labels", "label_column", "label_col", "target", "targets"),
    "image": ("image_column", "image_col", "path_column"),
    "size": ("input_size", "image_size", "img_size", "crop_size", "output_size", "resolution"),
    "flip": ("hflip", "horizontal_flip"),
    "vertical_flip": ("vflip",),
    "rotate90": ("rotate", "rotation", "degrees"),
    "shorter_side": ("resize", "resize_size"),
    "center_fraction": ("crop_pct",),
    "interpolation": ("train_interpolation",),
    "auto_augment": ("aa", "autoaugment", "randaugment", "ra"),
    "erasing": ("reprob", "re_prob", "random_erasing", "random_erase"),
    "mixup": ("mixup_alpha",),
    "cutmix": ("cutmix_alpha",),
    "rand_ops": ("num_ops",),
    "rand_magnitude": ("magnitude",),
    "validation": ("val", "valid", "val_dir", "val_data"),
    "lr": ("learning_rate",),
    "weight_decay": ("wd",),
    "checkpoint": ("output", "save_path"),
}
_WITHOUT = {
    "leave it out: batches are copied to device= in advance, through pinned memory": (
        *("pin_memory", "pin_memory_device", "non_blocking", "use_prefetcher", "os_cache"),
    ),
    "pass order=, a sampler or a function of the epoch; or shuffle=, weights= or subset=": ("sampler",),
    "choose samples with shuffle=, order= or weights=; a batch_sampler needs penstock.loaders.DataLoader": (
        *("batch_sampler", "resampled"),
    ),
    "pass shuffle=Repeated(3)": ("aug_repeats", "num_aug_repeats"),
    "pass seed=: order, crops and augmentations depend only on the seed": (
        *("generator", "worker_init_fn", "worker_seeding", "base_seed"),
    ),
    "leave it out: rank and world size are detected; pass device=f'cuda:{local_rank}', or call torch.cuda.set_device": (
        *("local_rank", "distributed", "world"),
    ),
    "leave it out: workers live across epochs, and batches come in order": ("persistent_workers", "in_order"),
    "pass pipeline=imagenet_train() or pipeline=imagenet_eval()": ("train", "is_training", "training", "no_aug"),
    "pass augmentations to the pipeline, such as pipeline=imagenet_train(auto_augment='rand')": ("augment",),
    "leave it out: images are normalised by the pipeline's mean and std, unless dtype=torch.uint8": ("normalize",),
    "pass other labels by with_labels(source, labels)": ("target_transform",),
    "leave it out: each `for` over the loader is one epoch": ("epochs", "num_epochs", "repeat"),
    "leave it out: the data defines the classes": ("num_classes",),
    "pass it to the loss, torch.nn.CrossEntropyLoss(label_smoothing=...)": ("label_smoothing", "smoothing"),
    "pass the data as the first argument": ("dataset", "data", "data_dir", "file_root", "urls", "path", "fname"),
    "leave it out: nothing is downloaded": ("download",),
    "pass one pipeline per view, such as pipeline=[imagenet_train()] * 2, or pipeline=dino()": (
        *("views", "n_views", "num_views", "nmb_crops", "num_crops", "multi_crop"),
    ),
}
_NAME_OF = {theirs: ours for ours, names in _OUR_NAMES.items() for theirs in names}
_ADVICE = {theirs: advice for advice, names in _WITHOUT.items() for theirs in names}


def cure_of_name(name: str, known: Collection[str], of_pipeline: Collection[str] = ()) -> str | None:
    """Return a suggestion for a setting that is not in `known`; None if there is none.

    of_pipeline: settings of the pipeline, if `known` are the settings of a loader.
    """
    if name in _ADVICE:
        return _ADVICE[name]
    ours = name_here(name, known) or name
    if ours not in known and ours not in of_pipeline:
        near = difflib.get_close_matches(name.lower(), [*known, *of_pipeline], 1, cutoff=0.7)
        if not near:
            return None
        ours = near[0]
    return f"pass {ours}=" if ours in known else f"pass it to the pipeline, pipeline=imagenet_train({ours}=...)"


def name_here(name: str, known: Collection[str]) -> str | None:
    """Return the name here, or in `known`, for a setting of another library; None if there is none."""
    return _NAME_OF.get(name) or next((theirs for theirs in _OUR_NAMES.get(name, ()) if theirs in known), None)


def refuse_unknown(function: str, names: Collection[str], known: Collection[str]) -> None:
    """Raise TypeError with a suggestion for the first of the unknown names."""
    for name in names:
        fix = cure_of_name(name, known) or f"it accepts {', '.join(known)}"
        raise TypeError(f"{function} has no setting {name}: {fix}")
