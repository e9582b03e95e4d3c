"""Chooses the image and label columns of an Arrow table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.loaders.data.arrow.arrow_package import Schema, import_pyarrow
from penstock.loaders.data.labels.choose_columns import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    PATH_COLUMNS,
    TEXT_COLUMNS,
    find_named,
    name_columns,
    refuse_twins,
    split_floats,
)
from penstock.loaders.data.labels.collect_texts import NO_TEXTS, TextOptions
from penstock.loaders.data.samples.saved_texts import TEXT
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.checked import near_name, shown

AUTO = "auto"  # value of the option `label`: the column is found by its name
_LISTS = ("Sequence", "List", "LargeList")  # Hugging Face's names for lists, in several versions
Features = Mapping[str, object]  # name of a column -> its description by Hugging Face
Label = str | Sequence[str] | Mapping[str, str] | None  # the option `label`: a column, or several


class Chosen(NamedTuple):
    """The chosen columns.

    Attributes:
        image: name of the image column.
        labels: label name -> name of its column, "" for a single label, TEXT for texts; empty for images of one class.
        classes: label name -> class names, for labels with classes declared in the table.
        floats: names of the labels requested as floats.
    """

    image: str
    labels: dict[str, str]
    classes: dict[str, tuple[str, ...]]
    floats: frozenset[str] = frozenset()


def holds_bytes(kind: Any) -> bool:
    """Return whether a column of the pyarrow type `kind` can contain images: binary, or Hugging Face's struct."""
    types = import_pyarrow().types
    kind = getattr(kind, "storage_type", kind)
    if types.is_struct(kind):
        return any(kind.field(i).name == "bytes" and holds_bytes(kind.field(i).type) for i in range(kind.num_fields))
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def holds_paths(kind: object) -> bool:
    """Return whether a column of the pyarrow type `kind` can contain the names of image files."""
    types = import_pyarrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind))


def read_features(schema: Schema, info: bytes = b"") -> Features:
    """Return the columns' descriptions from `info` (a dataset_info.json), or from the metadata of a schema."""
    noted = (schema.metadata or {}).get(b"huggingface", b"")
    for text, keys in ((info, ("features",)), (noted, ("info", "features"))):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            continue
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, dict):
            return found
    return {}


def choose_typed(
    schema: Schema,
    features: Features,
    image: str | None,
    label: Label,
    *,
    paths: bool = True,
    text: TextOptions = NO_TEXTS,
) -> Chosen:
    """Return the columns chosen from a pyarrow schema; `image`, `label` and `text` are the options of these names.

    A label column may have ":float" after its name. paths: whether a column of file names is accepted for the images.
    Raises ValueError that lists the columns.
    """
    column = _choose_image(schema, features, image, paths)
    if column is None:
        wanted = "encoded images (binary, or struct with bytes)" + " or paths of image files" * paths
        given = f"got {shown(image)}" if image is not None else "but no single column fits"
        raise ValueError(f"image must be a column of {wanted}, {given}; {_list_columns(schema)}")
    refuse_twins([column], schema.names)
    plain, floats = split_floats(label, schema.names)
    named = {} if plain is None else name_columns(plain) or {"": plain}
    if plain == AUTO and text.place is not None:  # texts need no labels
        found = _find_label(schema, features, AUTO)
        named = {} if found in (None, text.place) else named
    labels = {name: _choose_label(schema, features, wanted) for name, wanted in named.items()}
    if text.place is not None:
        labels[TEXT] = _choose_text(schema, text.place)
    declared = {name: _class_names(features.get(column)) for name, column in labels.items()}
    return Chosen(column, labels, {name: names for name, names in declared.items() if names is not None}, floats)


def refuse_other_columns(chosen: Chosen, schema: Schema, path: bytes) -> None:
    """Raise LoaderError E-FORMAT if a further file lacks a chosen column, or numbers the classes differently."""
    names = (chosen.image, *chosen.labels.values())
    lacking = next((name for name in names if schema.names.count(name) != 1), None)
    if lacking is not None:
        cause = f"it has no column {lacking!r}, or more than one, unlike the file before it"
        raise LoaderError("E-FORMAT", cause, fix="pass files of one data set", path=path)
    features = read_features(schema)
    for name, column in chosen.labels.items():
        own, first = _class_names(features.get(column)), chosen.classes.get(name)
        if own is not None and first is not None and own != first and name not in chosen.floats:
            cause = f"its column {column!r} has the classes {shown(list(own))}, the first file {shown(list(first))}"
            fix = "join the files with concat, which matches classes by name"
            raise LoaderError("E-FORMAT", cause, fix=fix, path=path)


def _choose_image(schema: Schema, features: Features, image: str | None, paths: bool) -> str | None:
    held = [field.name for field in schema if holds_bytes(field.type)]
    usual = [name for name in IMAGE_COLUMNS if name not in PATH_COLUMNS]
    named = [field.name for field in schema if paths and holds_paths(field.type)]
    if image is not None:
        return image if image in (*held, *named) else None
    suitable = [name for name in schema.names if name in held or (name in named and name in usual)]
    candidates = [name for name in suitable if _type_of(features.get(name)) == "Image"] or suitable
    if len(candidates) == 1:
        return str(candidates[0])
    found = next((name for name in usual if name in candidates), None)
    known = usual if held else sorted(IMAGE_COLUMNS, key=PATH_COLUMNS.__contains__)
    return found or find_named(known, [name for name in schema.names if name in held or name in named])


def _choose_text(schema: Schema, text: object) -> str:
    held = [field.name for field in schema if _is_text(field.type)]
    refuse_twins([text], schema.names)
    if text not in held:
        raise ValueError(
            f"text must be a column of strings or lists of these, got {shown(text)}{near_name(text, held)}; "
            f"{_list_columns(schema)}"
        )
    return str(text)


def _is_text(kind: Any) -> bool:
    types = import_pyarrow().types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    return holds_paths(kind.value_type if types.is_dictionary(kind) else kind)


def _choose_label(schema: Schema, features: Features, label: object) -> str:
    found = _find_label(schema, features, label)
    if found is None:
        wanted = "a column of class numbers, names, floats or lists of these, or None for images of one class"
        held = [field.name for field in schema if _is_label(field.type)]
        given = f"got {shown(label)}{near_name(label, held)}"
        if label == AUTO:
            text = find_named(TEXT_COLUMNS, schema.names)
            given = "and no column has a known name for labels: name one with label="
            given += f", or pass text={text!r} for its texts" if text is not None else ""
        raise ValueError(f"label must be {wanted}, {given}; {_list_columns(schema)}")
    return found


def _find_label(schema: Schema, features: Features, label: object) -> str | None:
    suitable = [field.name for field in schema if _is_label(field.type)]
    named = [name for name in LABEL_COLUMNS[:-1] if name in suitable]  # without "y", which is ambiguous
    refuse_twins([label] if label != AUTO else named, schema.names)
    named.sort(key=lambda name: not _is_class(schema.field(name).type))  # classes before numbers and lists
    declared = [name for name in suitable if _type_of(features.get(name)) == "ClassLabel"]
    found = named[0] if named else declared[0] if len(declared) == 1 else find_named(LABEL_COLUMNS, suitable)
    return found if label == AUTO else next((name for name in suitable if name == label), None)


def _is_label(kind: Any) -> bool:
    types = import_pyarrow().types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
        if types.is_null(kind):  # all lists are empty
            return True
    return _is_class(kind) or bool(types.is_floating(kind) or types.is_decimal(kind))


def _is_class(kind: Any) -> bool:
    types = import_pyarrow().types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_integer(kind) or types.is_boolean(kind) or holds_paths(kind))


def _type_of(feature: object) -> str | None:
    return feature.get("_type") if isinstance(feature, dict) else None


def _class_names(feature: object) -> tuple[str, ...] | None:
    if isinstance(feature, list):  # a list in older versions
        feature = feature[0] if len(feature) == 1 else None
    elif isinstance(feature, dict) and _type_of(feature) in _LISTS:
        feature = feature.get("feature")
    names = feature.get("names") if isinstance(feature, dict) and _type_of(feature) == "ClassLabel" else None
    return tuple(map(str, names)) if isinstance(names, list) and names else None


def _list_columns(schema: Schema) -> str:
    listed = ", ".join(f"{field.name} ({field.type})" for field in schema)
    return f"the columns are {listed}" if listed else "the table has no columns"
