"""The names and values that type checkers know as options are those that the loader takes."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from penstock.loaders import create_loader
from penstock.loaders.data.arrow.parquet_source import ParquetSource
from penstock.loaders.data.fields.field_specs import _BY_NAME
from penstock.loaders.data.remote.remote_source import RemoteOptions
from penstock.loaders.data.views.subset import PART_OPTIONS
from penstock.loaders.front.backends import BACKENDS
from penstock.loaders.front.loader_options import (
    BackendOptions,
    DataOptions,
    FieldOptions,
    LoaderOptions,
    OpenOptions,
    ReadingOptions,
    SourceOptions,
)
from penstock.loaders.front.open_source import KINDS, SOURCE_OPTIONS

OF_BACKENDS = {name for backend in BACKENDS.values() for name in backend.option_names}


def test_each_option_of_the_loader_is_known_to_type_checkers_and_the_other_way_round() -> None:
    assert set(SOURCE_OPTIONS) == SourceOptions.__annotations__.keys()
    assert set(BackendOptions.__annotations__) == OF_BACKENDS
    assert LoaderOptions.__annotations__.keys() == SOURCE_OPTIONS | OF_BACKENDS


def test_each_option_of_an_opener_is_known_to_type_checkers_and_the_other_way_round() -> None:
    openers = [*(kind.open for kind in KINDS), RemoteOptions, ParquetSource]  # the last two: options passed on as **
    named = (p for opener in openers for p in inspect.signature(opener).parameters.values())
    of_openers = {p.name for p in named if p.default is not p.empty} | set(PART_OPTIONS)
    assert of_openers == OpenOptions.__annotations__.keys()
    assert FieldOptions.__annotations__.keys() == of_openers | set(_BY_NAME)


@pytest.mark.parametrize("options", [DataOptions, SourceOptions, ReadingOptions, FieldOptions, BackendOptions])
def test_each_option_is_described(options: Any) -> None:
    described = re.findall(r"^    (\w+): ", inspect.getdoc(options) or "", re.MULTILINE)
    inherited = {SourceOptions: DataOptions, FieldOptions: OpenOptions}.get(options)
    assert described == [n for n in options.__annotations__ if inherited is None or n not in inherited.__annotations__]


def test_the_help_of_create_loader_names_each_option() -> None:
    manual = (inspect.getdoc(create_loader) or "").partition("options: ")[2]
    assert [name for name in LoaderOptions.__annotations__ if not re.search(rf"\b{name}\b", manual)] == []


def test_the_values_that_type_checkers_accept_are_accepted() -> None:
    given = get_type_hints(BackendOptions)
    values = {name: get_args(kind) for name, kind in given.items() if get_origin(kind) is Literal}
    assert values.keys() == {"workers_are", "start_method", "decode"}
    for backend in BACKENDS.values():
        for name, accepted in values.items():
            if name in {field.name for field in fields(backend.options)}:
                for value in accepted:
                    backend.options(**{name: value})
                with pytest.raises(ValueError, match=re.escape(", ".join(accepted))):
                    backend.options(**{name: "other"})
