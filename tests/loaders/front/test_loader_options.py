"""The names and values that type checkers know as options are those that the loader takes."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from penstock.loaders import create_loader
from penstock.loaders.front.backends import BACKENDS
from penstock.loaders.front.loader_options import BackendOptions, DataOptions, LoaderOptions, SourceOptions
from penstock.loaders.front.open_source import SOURCE_OPTIONS

OF_BACKENDS = {name for backend in BACKENDS.values() for name in backend.option_names}


def test_each_option_of_the_loader_is_known_to_type_checkers_and_the_other_way_round() -> None:
    assert set(SOURCE_OPTIONS) == SourceOptions.__annotations__.keys()
    assert set(BackendOptions.__annotations__) == OF_BACKENDS
    assert LoaderOptions.__annotations__.keys() == SOURCE_OPTIONS | OF_BACKENDS


@pytest.mark.parametrize("options", [DataOptions, SourceOptions, BackendOptions])
def test_each_option_is_described(options: Any) -> None:
    described = re.findall(r"^    (\w+): ", inspect.getdoc(options) or "", re.MULTILINE)
    inherited = DataOptions.__annotations__ if options is SourceOptions else ()
    assert described == [name for name in options.__annotations__ if name not in inherited]


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
