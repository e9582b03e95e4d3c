"""Pipelines of published training recipes: timm's, DeiT III, SimCLR, DINO, torchvision's for masks and boxes.

Each function accepts the size of the images, and fields of ImagePipeline and Augmentations that override its own.
Images are resized by the filter of the recipe's code, with antialiasing as in Pillow. Each mixed pair has its own
share, whereas timm draws one per batch (except with `mixup_mode="pair"`).
"""

from __future__ import annotations

from typing import Any

from typing_extensions import Unpack

from penstock.pipelines.pipeline_settings import PipelineSettings
from penstock.pipelines.spec import ImagePipeline, imagenet_train

_Size = int | tuple[int, int]
_DEIT3: dict[str, Any] = {
    "interpolation": "bicubic",
    "three_augment": True,
    "color_jitter": (0.3, 0.3, 0.3, 0.0),
    "cutmix": 1.0,
}
_DINO: dict[str, Any] = {
    "interpolation": "bicubic",
    "color_jitter": (0.4, 0.4, 0.2, 0.1),
    "color_jitter_probability": 0.8,
    "grayscale": 0.2,
}


def timm_a1(size: _Size = 224, **settings: Unpack[PipelineSettings]) -> ImagePipeline:
    """Return the training pipeline of A1 (600 epochs): RandAugment rand-m7-mstd0.5-inc1, mixup 0.2 and cutmix 1.0.

    Source: Wightman, Touvron, Jégou: "ResNet strikes back", arXiv 2110.00476, table 2; timm/data/auto_augment.py and
    train.py (train_interpolation) of pytorch-image-models. Evaluate with `imagenet_eval(224, center_fraction=0.95,
    interpolation="bicubic")`.
    Not part of the data: binary cross-entropy, label smoothing 0.1 of the soft targets, repeated augmentation, LAMB,
    stochastic depth 0.05.
    """
    return _timm(size, {"rand_magnitude": 7, "mixup": 0.2}, settings)


def timm_a2(size: _Size = 224, **settings: Unpack[PipelineSettings]) -> ImagePipeline:
    """Return the training pipeline of A2 (300 epochs): A1 with mixup 0.1.

    Source and evaluation: see timm_a1. Not part of the data: binary cross-entropy without label smoothing, repeated
    augmentation, LAMB, stochastic depth 0.05.
    """
    return _timm(size, {"rand_magnitude": 7, "mixup": 0.1}, settings)


def timm_a3(size: _Size = 160, **settings: Unpack[PipelineSettings]) -> ImagePipeline:
    """Return the training pipeline of A3 (100 epochs): size 160, RandAugment rand-m6-mstd0.5-inc1, mixup 0.1.

    Source: see timm_a1. Evaluate at 224: `imagenet_eval(224, center_fraction=0.95, interpolation="bicubic")`.
    Not part of the data: binary cross-entropy without label smoothing, LAMB. A3 does not use repeated augmentation.
    """
    return _timm(size, {"rand_magnitude": 6, "mixup": 0.1}, settings)


def deit3(size: _Size = 224, **settings: Unpack[PipelineSettings]) -> ImagePipeline:
    """Return the training pipeline of DeiT III on ImageNet-1k: 3-Augment, colour jitter 0.3, mixup 0.8, cutmix 1.0.

    Source: Touvron, Cord, Jégou: "DeiT III: Revenge of the ViT", arXiv 2204.07118; augment.py and the commands in
    README_revenge.md of facebookresearch/deit. Larger models train at 192 or 160. Evaluate with
    `imagenet_eval(224, center_fraction=1.0, interpolation="bicubic")`. Fine-tuning at a higher resolution uses timm's
    rand-m9-mstd0.5-inc1 instead: `imagenet_train(224, interpolation="bicubic", auto_augment="timm",
    rand_magnitude_std=0.5, mixup=0.8, cutmix=1.0)`.
    Not part of the data: binary cross-entropy, repeated augmentation, LAMB, stochastic depth, LayerScale.
    """
    return imagenet_train(size, **{**_DEIT3, "mixup": 0.8, **settings})


def deit3_21k(size: _Size = 224, **settings: Unpack[PipelineSettings]) -> ImagePipeline:
    """Return the training pipeline of DeiT III on ImageNet-21k: a simple random crop, 3-Augment, cutmix 1.0, no mixup.

    The shorter side is resized to `size`, four pixels are added on each side, and a crop of `size` is cut out. Added
    pixels are black; the reference mirrors the edge. The reference fine-tunes on ImageNet-1k with the same pipeline.
    Source and evaluation: see deit3. Not part of the data: cross-entropy with label smoothing 0.1, LAMB, stochastic
    depth.
    """
    shorter_side = max(size) if isinstance(size, (tuple, list)) else size
    recipe: dict[str, Any] = {"crop": "random", "shorter_side": shorter_side, "padding": 4}
    return imagenet_train(size, **{**_DEIT3, **recipe, **settings})


def simclr_view(size: _Size = 224, *, strength: float = 1.0, **settings: Unpack[PipelineSettings]) -> ImagePipeline:
    """Return the pipeline of each of SimCLR's two views: colour jitter with probability 0.8, grey 0.2, blur 0.5.

    Source: Chen, Kornblith, Norouzi, Hinton: "A simple framework for contrastive learning", arXiv 2002.05709, appendix
    A, with its PyTorch code for the colours; data_util.py of google-research/simclr. `strength` scales the jitter; the
    paper uses 0.5 and no blur for CIFAR-10. As in the paper, pixels are scaled to 0 to 1 and not normalised further.
    The blur is Pillow's, which approximates the sampled Gaussian of the paper, and repeats pixels at the edges; the
    paper's code uses black there, and its bicubic resize is not antialiased. Not part of the data: the contrastive
    loss, LARS.
    """
    recipe: dict[str, Any] = {
        "interpolation": "bicubic",
        "color_jitter": (0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength),
        "color_jitter_probability": 0.8,
        "grayscale": 0.2,
        "blur": 0.5,
        "mean": (0.0, 0.0, 0.0),
        "std": (1.0, 1.0, 1.0),
    }
    return imagenet_train(size, **{**recipe, **settings})


def simclr(
    size: _Size = 224, *, strength: float = 1.0, **settings: Unpack[PipelineSettings]
) -> tuple[ImagePipeline, ...]:
    """Return the pipelines of SimCLR's two views, for `create_loader(..., pipeline=simclr())`.

    Each draws colour jitter with probability 0.8, grey 0.2 and blur 0.5; pixels are scaled to 0 to 1 and not normalised
    further. `strength` scales the jitter; the paper uses 0.5 and `blur=0.0` for CIFAR-10. `settings` are those of
    imagenet_train. Source and differences: see penstock.pipelines.presets.simclr_view.
    """
    return (simclr_view(size, strength=strength, **settings),) * 2


def dino(size: _Size = 224, *, local_size: _Size = 96, local_views: int = 8) -> tuple[ImagePipeline, ...]:
    """Return the pipelines of DINO's views, for `create_loader(..., pipeline=dino())`: two global, then local ones.

    size: size of the global views, which cover 0.4 to 1 of the area; local_size: size of the `local_views`, which cover
    0.05 to 0.4. Source: Caron et al.: "Emerging properties in self-supervised vision transformers", arXiv 2104.14294.
    """
    return dino_global_1(size), dino_global_2(size), *(dino_local(local_size),) * local_views


def dino_global_1(size: _Size = 224, **settings: Unpack[PipelineSettings]) -> ImagePipeline:
    """Return the pipeline of DINO's first global view: always blurred.

    Source: Caron et al.: "Emerging properties in self-supervised vision transformers", arXiv 2104.14294; the class
    DataAugmentationDINO in main_dino.py of facebookresearch/dino, with the default crop scales of its command line.
    Not part of the data: teacher, centring, multi-crop loss.
    """
    return imagenet_train(size, **{"scale": (0.4, 1.0), "blur": 1.0, **_DINO, **settings})


def dino_global_2(size: _Size = 224, **settings: Unpack[PipelineSettings]) -> ImagePipeline:
    """Return the pipeline of DINO's second global view: blurred with probability 0.1, solarized with 0.2.

    Source: see dino_global_1.
    """
    return imagenet_train(size, **{"scale": (0.4, 1.0), "blur": 0.1, "solarize": 0.2, **_DINO, **settings})


def dino_local(size: _Size = 96, **settings: Unpack[PipelineSettings]) -> ImagePipeline:
    """Return the pipeline of each of DINO's local views (8 by default): small crops, blurred with probability 0.5.

    Source: see dino_global_1.
    """
    return imagenet_train(size, **{"scale": (0.05, 0.4), "blur": 0.5, **_DINO, **settings})


def segmentation_train(size: _Size = 480, *, base: int = 520, **settings: Unpack[PipelineSettings]) -> ImagePipeline:
    """Return a training pipeline for semantic segmentation: the shorter side drawn from 0.5 to 2 of `base`, a crop.

    Source: SegmentationPresetTrain in references/segmentation/presets.py of pytorch/vision. Images that are smaller
    than the crop are padded with black on all sides; the reference pads right and below. Masks of with_fields follow.
    """
    recipe: dict[str, Any] = {"crop": "random", "shorter_side": (base // 2, 2 * base)}
    return imagenet_train(size, **{**recipe, **settings})


def detection_train(size: _Size = 1024, **settings: Unpack[PipelineSettings]) -> ImagePipeline:
    """Return a training pipeline for detection with large-scale jitter: scaled by 0.1 to 2, cropped or padded.

    Source: Ghiasi et al.: "Simple copy-paste is a strong data augmentation method for instance segmentation", arXiv
    2012.07177; DetectionPresetTrain with "lsj" in references/detection/presets.py of pytorch/vision. The padding lies
    right and below, in the mean colour. Boxes, keypoints and masks of with_fields follow.
    """
    recipe: dict[str, Any] = {
        "crop": "scale_jitter",
        "jitter": (0.1, 2.0),
        "align": "top_left",
        "fill": (123, 117, 104),
    }
    return imagenet_train(size, **{**recipe, **settings})


def _timm(size: _Size, recipe: dict[str, Any], settings: PipelineSettings) -> ImagePipeline:
    common = {"interpolation": "random", "auto_augment": "timm", "rand_magnitude_std": 0.5, "cutmix": 1.0}
    return imagenet_train(size, **{**common, **recipe, **settings})
