"""The settings that type checkers know are the fields of ImagePipeline and Augmentations."""

from __future__ import annotations

from typing import Literal, get_args, get_origin, get_type_hints

from penstock.pipelines.augmentations import Augmentations
from penstock.pipelines.pipeline_settings import EvaluationSettings, PipelineSettings
from penstock.pipelines.spec import PIPELINE_SETTINGS, ImagePipeline


def test_each_setting_of_a_pipeline_is_known_to_type_checkers_and_the_other_way_round() -> None:
    assert list(PipelineSettings.__annotations__) == [name for name in PIPELINE_SETTINGS if name != "size"]


def test_the_values_that_type_checkers_accept_are_those_of_the_field() -> None:
    taken = {**get_type_hints(ImagePipeline), **get_type_hints(Augmentations)}
    for name, known in get_type_hints(PipelineSettings).items():
        literals = [part for part in (known, *get_args(known)) if get_origin(part) is Literal]
        assert literals == [part for part in (taken[name], *get_args(taken[name])) if get_origin(part) is Literal]


def test_the_settings_of_evaluations_are_those_of_pipelines_without_random_values() -> None:
    settings, drawn = get_type_hints(PipelineSettings), {"crop", "shorter_side", "interpolation"}
    for name, known in get_type_hints(EvaluationSettings).items():
        assert (known == settings[name]) is (name not in drawn)
