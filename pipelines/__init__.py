"""Processing of single samples, then of batches."""

import sys
import warnings

from penstock.pipelines.augmentations import Augmentations
from penstock.pipelines.batch.stage import BatchStage
from penstock.pipelines.errors import ERROR_CODES, LoaderError
from penstock.pipelines.pipeline_settings import EvaluationSettings, PipelineSettings
from penstock.pipelines.plan.crops import BatchPlan, plan_batch
from penstock.pipelines.presets import deit3, deit3_21k, dino, simclr, timm_a1, timm_a2, timm_a3
from penstock.pipelines.pretrained import for_hugging_face, for_timm
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.spec import IMAGENET_MEAN, IMAGENET_STD, ImagePipeline, imagenet_eval, imagenet_train

__all__ = [
    "ERROR_CODES",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Augmentations",
    "BatchPlan",
    "BatchStage",
    "EvaluationSettings",
    "ImageDecoder",
    "ImagePipeline",
    "LoaderError",
    "PipelineSettings",
    "deit3",
    "deit3_21k",
    "dino",
    "for_hugging_face",
    "for_timm",
    "imagenet_eval",
    "imagenet_train",
    "plan_batch",
    "simclr",
    "timm_a1",
    "timm_a2",
    "timm_a3",
]

_package = getattr(sys.modules["penstock"], "__file__", None)
if _package is not None:  # ours is a namespace without a file: its folders are installed next to each other
    warnings.warn(
        f"{_package!a} belongs to another project called penstock: uninstall that one (pip uninstall penstock)",
        RuntimeWarning,
        stacklevel=2,
    )
