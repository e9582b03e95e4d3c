"""Pipelines for pretrained models of timm and of Hugging Face, from the settings that a model is published with."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from typing_extensions import Unpack

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import INTERPOLATIONS
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.pipeline_settings import PipelineSettings
from penstock.pipelines.spec import IMAGENET_MEAN, IMAGENET_STD, ImagePipeline, imagenet_train

_CROP_PCT = 0.875  # timm's DEFAULT_CROP_PCT
_PILLOW_FILTERS: dict[Any, str] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
# Image processors of Hugging Face that do nothing but what for_hugging_face reads, without Fast, Pil and the like.
_PLAIN_PROCESSORS = (
    *("Beit", "Bit", "Blip", "CLIP", "ChineseCLIP", "ConvNext", "DeiT", "DINOv3ViT", "Flava", "MobileNetV1"),
    *("MobileNetV2", "Siglip", "ViT"),
)
_OTHER_STEPS = ("do_pad", "do_flip_channel_order", "do_thumbnail", "do_align_long_axis", "do_rescale_offset")
_OWN = "choose the settings of imagenet_train and imagenet_eval yourself"


class Pipelines(NamedTuple):
    """A pipeline for training, and one for evaluation: two pipelines, not two views of an image."""

    train: ImagePipeline
    evaluation: ImagePipeline


def for_timm(model: Any, **settings: Unpack[PipelineSettings]) -> Pipelines:
    """Return the pipelines for training and for evaluation of a model of timm.

    train, evaluation = for_timm(timm.create_model("vit_base_patch16_224", pretrained=True), mixup=0.2)

    Size, channels, mean, std, interpolation, `crop_pct` and `crop_mode` are those of the model's pretrained_cfg, with
    timm's defaults. As in timm's validate.py, the evaluation uses `test_input_size` and `test_crop_pct` where they are
    set. Its crops are those of timm (`resize_first`); with resample="pillow", so is each level.

    Args:
        model: a model, its pretrained_cfg (a dict or a PretrainedCfg), the result of timm.data.resolve_data_config, or
            the name of a model, for which timm must be installed.
        settings: settings of imagenet_train for the training pipeline, such as flip or auto_augment; those of both,
            such as mean, also change the evaluation.

    Raises ValueError for settings that cannot be served: an unknown crop_mode or interpolation, a crop_pct above 1, a
    border that is trimmed; LoaderError E-DEPENDENCY without timm.
    """
    config = _timm_config(model)
    size, test_size = config["input_size"], config.get("test_input_size") or config["input_size"]
    filter_name = _checked_filter(config.get("interpolation") or "bicubic")
    common: dict[str, Any] = {
        "channels": size[0],
        "mean": _per_channel(config.get("mean") or IMAGENET_MEAN, size[0]),
        "std": _per_channel(config.get("std") or IMAGENET_STD, size[0]),
        "interpolation": filter_name,
    }
    train = _make_training(tuple(size[1:]), common, settings)
    share = config.get("test_crop_pct") or config.get("crop_pct") or _CROP_PCT
    mode = config.get("crop_mode") or "center"
    if config.get("crop_border_pixels"):
        raise ValueError(f"the model's settings trim a border of {config['crop_border_pixels']} pixels: {_OWN}")
    if share > 1:
        raise ValueError(f"crop_pct must be at most 1, got {share}: {_OWN}")
    shown_size = tuple(test_size[1:])
    of_model = _of_evaluation(train, filter_name)
    exact: dict[str, Any] = {"resize_first": True, "center_fraction": share, **of_model}
    if mode == "squash":
        evaluation = train.evaluation(shown_size, crop="full", **(exact if share < 1 else of_model))
    elif mode == "border":
        fill = tuple(round(255 * value) for value in _per_channel(train.mean, 3))
        evaluation = train.evaluation(shown_size, crop="letterbox", align="center", fill=fill, **exact)
    elif mode == "center":
        evaluation = train.evaluation(shown_size, crop="center", **exact)
    else:
        raise ValueError(f"crop_mode must be center, squash or border, got {shown(mode)}: {_OWN}")
    return Pipelines(train, evaluation)


def _make_training(size: tuple[int, int], of_model: Mapping[str, Any], settings: Mapping[str, Any]) -> ImagePipeline:
    if "size" in settings:
        raise ValueError(
            "size is the model's: for another, change it in the model's settings, and pass these as a dict"
        )
    return imagenet_train(size, **{**of_model, **settings})


def _timm_config(model: Any) -> Mapping[str, Any]:
    """Return the settings of a model of timm by name. Raises ValueError, LoaderError E-DEPENDENCY."""
    config = model
    if isinstance(model, str):
        try:
            from timm.models import get_pretrained_cfg
        except ImportError as error:
            fix = "pip install 'penstock-loader[timm]', or pass the model's pretrained_cfg"
            raise LoaderError("E-DEPENDENCY", f"timm cannot be imported: {error}", fix=fix) from error
        config = get_pretrained_cfg(model)
        if config is None:
            raise ValueError(f"timm has no pretrained settings of a model named {shown(model)}")
    config = getattr(config, "pretrained_cfg", config)
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        config = dataclasses.asdict(config)
    if not isinstance(config, Mapping) or len(config.get("input_size") or ()) != 3:
        raise ValueError(
            f"model must be a model of timm, its pretrained_cfg with an input_size, or its name, got {shown(model)}"
        )
    return config


def for_hugging_face(processor: Any, **settings: Unpack[PipelineSettings]) -> Pipelines:
    """Return the pipelines for training and for evaluation of a model with an image processor of Hugging Face.

    train, evaluation = for_hugging_face(AutoImageProcessor.from_pretrained("google/vit-base-patch16-224"))

    The evaluation does what the processor does in transformers 5: a resize of the whole image to one size or of its
    shorter side, a centre crop, then rescaling and normalising. Training uses its size, mean, std and interpolation
    with a random crop.

    Args:
        processor: an image processor of transformers, or the dict of its preprocessor_config.json.
        settings: as in for_timm.

    Raises ValueError for a processor that does anything else, and for those that it does not know.
    """
    wrapped = getattr(processor, "pretrained_cfg", None)  # TimmWrapperImageProcessor
    if wrapped is not None:
        return for_timm(wrapped, **settings)
    given = processor if isinstance(processor, Mapping) else getattr(processor, "to_dict", dict)()
    name = str(given.get("image_processor_type") or given.get("feature_extractor_type") or type(processor).__name__)
    kind = name.replace("ImageProcessor", " ").replace("FeatureExtractor", " ").split(" ")[0]
    if kind not in _PLAIN_PROCESSORS:
        fix = f"pass AutoImageProcessor.from_pretrained({processor!r})" if isinstance(processor, str) else _OWN
        raise ValueError(f"processor must be one of {', '.join(_PLAIN_PROCESSORS)}, got {shown(name)}: {fix}")
    config = {"do_resize": True, "do_rescale": True, "do_normalize": True, "do_center_crop": False, **given}
    steps = [step for step in _OTHER_STEPS if config.get(step)]
    if steps or not config["do_resize"]:
        raise ValueError(f"{name} cannot be served with {steps[0] if steps else 'do_resize=False'}: {_OWN}")
    if config["do_rescale"] is not True or abs(255 * config.get("rescale_factor", 1 / 255) - 1) > 1e-6:
        raise ValueError(f"{name} must rescale by 1/255, got rescale_factor={config.get('rescale_factor')}: {_OWN}")
    code = config.get("resample")
    common: dict[str, Any] = {
        "mean": config["image_mean"] if config["do_normalize"] else (0.0,) * 3,
        "std": config["image_std"] if config["do_normalize"] else (1.0,) * 3,
        "interpolation": _checked_filter(_PILLOW_FILTERS.get(getattr(code, "value", code), code)),
    }
    size, crop = _processor_crop(name, kind, config)
    train = _make_training(size, common, settings)
    return Pipelines(train, train.evaluation(**crop, **_of_evaluation(train, common["interpolation"])))


def _processor_crop(name: str, kind: str, config: Mapping[str, Any]) -> tuple[tuple[int, int], dict[str, Any]]:
    """Return the size of a processor's images, (height, width), and the crop of its evaluation."""
    size, crop = config.get("size"), config.get("crop_size")
    sides = _sides(crop) if config["do_center_crop"] else None
    shortest = size.get("shortest_edge") if isinstance(size, Mapping) else None  # a number means either, by processor
    center: dict[str, Any] = {"crop": "center", "resize_first": True, "align": "center_down"}
    if kind == "ConvNext" and shortest is not None:
        square, share = (shortest, shortest), config.get("crop_pct", 224 / 256)
        return square, {"crop": "full"} if shortest >= 384 else {**center, "center_fraction": share}
    if shortest is not None and sides is not None and max(sides) <= shortest:
        return sides, {**center, "shorter_side": shortest}
    whole = _sides(size)
    if whole is not None and (not config["do_center_crop"] or sides == whole):
        return whole, {"crop": "full"}
    if whole is not None and sides is not None:
        share = min(side / length for side, length in zip(sides, whole, strict=True))
        for fraction in (share, math.nextafter(share, 0)):
            if share <= 1 and tuple(math.floor(side / fraction) for side in sides) == whole:
                return sides, {**center, "crop": "full", "center_fraction": fraction}
    how = f"size={size}, do_center_crop={config['do_center_crop']}, crop_size={crop}"
    raise ValueError(f"{name} cannot be served with {how}: {_OWN}")


def _of_evaluation(train: ImagePipeline, model_filter: str) -> dict[str, Any]:
    """Return the interpolation of the evaluation: the training's, or if that is drawn, the model's."""
    return {"interpolation": model_filter if train.interpolation == "random" else train.interpolation}


def _sides(size: Any) -> tuple[int, int] | None:
    """Return (height, width) of a size of transformers; None if it does not give both."""
    height, width = (size.get(name) if isinstance(size, Mapping) else None for name in ("height", "width"))
    return (height, width) if height and width else None


def _checked_filter(name: Any) -> str:
    if name not in INTERPOLATIONS:
        raise ValueError(f"the model's interpolation must be {', '.join(INTERPOLATIONS)}, got {shown(name)}: {_OWN}")
    return str(name)


def _per_channel(values: Any, channels: int) -> tuple[float, ...]:
    """Return one value per channel, as timm does with a single one."""
    found = tuple(values) if isinstance(values, (tuple, list)) else (values,)
    return found * channels if len(found) == 1 else found
