"""Reads the values of fields from columns of tables, data frames and Arrow files."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from penstock.loaders.data.arrow.arrow_columns import holds_paths
from penstock.loaders.data.arrow.arrow_files import ArrowFile
from penstock.loaders.data.arrow.arrow_parquet import open_file, read_schema
from penstock.loaders.data.arrow.dataset_object import refuse_transform
from penstock.loaders.data.fields.field_specs import Masks
from penstock.loaders.data.fields.image_targets import ImageTargets
from penstock.loaders.data.files.path_patterns import AnyPath, expand_pattern, is_pattern
from penstock.loaders.data.labels.choose_columns import IMAGE_COLUMNS, find_named, refuse_twins
from penstock.loaders.data.remote.access import DEFAULT, Access
from penstock.loaders.data.remote.path_or_url import absolute, folder_of
from penstock.loaders.data.samples.columns import BytesColumn
from penstock.loaders.data.sources.contract import Source, sample_name
from penstock.loaders.data.tables.open_tables import as_root
from penstock.loaders.data.tables.table_rows import PARQUET_SUFFIX, TABLE_SUFFIXES, choose_reader, read_header
from penstock.loaders.system.file_read import read_error
from penstock.pipelines.errors import printable
from penstock.pipelines.messages.checked import shown

_IPC_SUFFIXES = (".arrow", ".feather")


@dataclasses.dataclass(frozen=True)
class Column:
    """A column with the values of a field; with_fields accepts it in place of a list of values.

    Attributes:
        name: name of the column. For masks and image targets, the column contains paths or encoded files; for boxes,
            classes and keypoints, lists or JSON text.
        table: a table, Arrow file, data frame or Dataset with one row per sample; by default the data itself.
        json: whether text is parsed as JSON.
    """

    name: str
    table: object = None
    json: bool = False


def has_column(value: object) -> bool:
    """Return whether a field of with_fields is a Column or contains one."""
    return next(_columns_of(value), None) is not None


def fill_columns(
    given: Mapping[str, object], data: object, root: AnyPath | None = None, access: Access = DEFAULT
) -> dict[str, object]:
    """Return fields for with_fields, with values in place of each Column.

    data: the data that was opened. root: folder of relative paths, by default the table's folder. access: of tables at
    URLs. Raises ValueError, LoaderError as open_tables does.
    """
    return {
        name: _fill(value, name == "mask", name in ("boxes", "keypoints"), data, root, access)
        for name, value in given.items()
    }


def refuse_other_order(given: Mapping[str, object], source: Source, access: Access = DEFAULT) -> None:
    """Raise ValueError for a Column of a separate table that names the images of `source` in another order.

    given: fields for with_fields. A table with another number of rows is refused later, where its values are used.
    """
    tables = {id(each.table): (name, each.table) for name, value in given.items() for each in _columns_of(value)}
    for name, table in tables.values():
        if table is None:
            continue
        called, paths = sample_name, _read_paths(table, access)
        if not paths:
            called, paths = _call_row, _name_rows(table, access)
        if len(paths) == len(source) and (found := _find_other(paths, source, called)) is not None:
            raise ValueError(
                f"field {name!r}: the table's order differs from the data's: its row {found} (from 0) is for "
                f"{printable(paths[found])}, but sample {found} is {printable(called(source, found))}: pass the table "
                "as the data, with_fields(table, ...), or a function of a sample's name"
            )


def _columns_of(value: object) -> Iterator[Column]:
    if isinstance(value, Column):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _columns_of(each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _columns_of(getattr(value, field.name))


def _read_paths(table: object, access: Access) -> list[str]:
    """Return the image paths in a table; none if no column is known to contain them."""
    named = find_named(IMAGE_COLUMNS, _column_names(table, access))
    if named is None or not _may_hold_paths(table, named, access):
        return []
    values = [os.fspath(each) if isinstance(each, os.PathLike) else each for each in _read_column(table, named, access)]
    return values if all(isinstance(value, str) for value in values) else []


def _may_hold_paths(table: object, name: str, access: Access) -> bool:
    """Return whether a column may contain text: a column of images should not be read."""
    schema = getattr(getattr(table, "data", table), "schema", None)  # of a Dataset or a pyarrow table
    if isinstance(table, (str, bytes, os.PathLike)):
        path = _find_files(table)[0]
        if _suffix(path) == PARQUET_SUFFIX:
            schema = read_schema(path, access)
        else:
            schema = ArrowFile(path).schema if _suffix(path) in _IPC_SUFFIXES else None
    field = getattr(schema, "field", None)
    if field is None:
        return True
    kind = field(name).type
    return holds_paths(getattr(kind, "value_type", kind))


def _name_rows(table: object, access: Access) -> list[str]:
    """Return the names of the rows of several Parquet files; none for other tables."""
    paths = _find_files(table) if isinstance(table, (str, bytes, os.PathLike)) else []
    if len(paths) < 2 or _suffix(paths[0]) != PARQUET_SUFFIX:
        return []
    rows = []
    for path in paths:
        with open_file(path, access=access) as (file, _):
            rows += [f"{os.fsdecode(path)}:row {row}" for row in range(file.metadata.num_rows)]
    return rows


def _call_row(source: Source, index: int) -> bytes:
    return source.path(index)


def _find_other(paths: Sequence[str], source: Source, called: Callable[[Source, int], bytes]) -> int | None:
    """Return the number of the first sample that another row names, and not its own; None if there is none."""
    rows: dict[str, list[str]] = {}  # by the last part of their paths, filled when first needed
    for number, path in enumerate(paths):
        name = os.fsdecode(called(source, number))
        if _is_of(path, name):
            continue
        if not rows:
            for each in paths:
                rows.setdefault(each.rpartition("/")[2], []).append(each)
        if any(_is_of(each, name) for each in rows.get(name.rpartition("/")[2], ())):
            return number
    return None


def _is_of(path: str, name: str) -> bool:
    """Return whether a path and a name can be the same file: the shorter is the end of the longer."""
    longer, shorter = (path, name) if len(path) > len(name) else (name, path)
    return longer.endswith(shorter) and longer[: -len(shorter)][-1:] in ("", "/")


def _fill(
    value: object, are_pictures: bool, are_lists: bool, data: object, root: AnyPath | None, access: Access
) -> object:
    if isinstance(value, Column):
        table = data if value.table is None else value.table
        values = _read_column(table, value.name, access)
        if are_pictures:
            return _as_pictures(values, value.name, _folder(table, root))
        return [_parse(each, value.name) for each in values] if are_lists or value.json else values
    if isinstance(value, tuple):
        return tuple(_fill(each, are_pictures, are_lists, data, root, access) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        are_pictures = isinstance(value, (Masks, ImageTargets))
        fill = partial(_fill, are_pictures=are_pictures, are_lists=True, data=data, root=root, access=access)
        inner = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        filled = {name: fill(each) for name, each in inner.items() if isinstance(each, Column)}
        return dataclasses.replace(value, **filled)
    return value


def _read_column(table: Any, name: str, access: Access) -> list[Any]:
    if isinstance(table, (str, bytes, os.PathLike)):
        return [value for each in _find_files(table) for value in _read_file(each, name, access)]
    names = _column_names(table, access)
    if hasattr(table, "with_format"):  # a Hugging Face Dataset
        refuse_transform(table)
        table = table.with_format("arrow")[:]
    _check_name(name, names, table)
    column = table[name]
    convert = next((c for c in ("to_pylist", "to_list", "tolist") if hasattr(column, c)), None)
    return list(column) if convert is None else getattr(column, convert)()


def _find_files(table: AnyPath) -> list[bytes]:
    path = absolute(os.fsencode(table))
    return list(expand_pattern(path)) if is_pattern(path) else [path]


def _column_names(table: object, access: Access) -> list[Any]:
    """Return the names of a table's columns; none for anything else."""
    if not isinstance(table, (str, bytes, os.PathLike)):
        names = getattr(table, "column_names", None)
        return list(getattr(table, "columns", [])) if names is None else list(names)
    path = _find_files(table)[0]
    if _suffix(path) in _IPC_SUFFIXES:
        return list(ArrowFile(path).schema.names)
    return read_header(path, access) if _suffix(path) in TABLE_SUFFIXES else []


def _read_file(path: bytes, name: str, access: Access) -> list[Any]:
    suffix = _suffix(path)
    if suffix not in (*_IPC_SUFFIXES, *TABLE_SUFFIXES):
        wanted = "a table, an Arrow file, a data frame or a Dataset"
        raise ValueError(f"column {name!r} needs {wanted}, got {printable(path)}: pass Column({name!r}, table=...)")
    try:
        _check_name(name, _column_names(path, access), path)
        if suffix == PARQUET_SUFFIX:
            with open_file(path, access=access) as (file, _):
                return file.read([name]).column(0).to_pylist()  # type: ignore[no-any-return]
        if suffix in _IPC_SUFFIXES:
            return [value for (part,) in ArrowFile(path).chunks([name]) for value in part.to_pylist()]
        return [row[name] for _, _, row in choose_reader(path)(path, name, {name: name}, access=access)]
    except OSError as error:
        raise read_error(error, path) from error


def _suffix(path: bytes) -> str:
    return os.fsdecode(os.path.splitext(path)[1]).lower()


def _check_name(name: str, names: Sequence[object], table: object) -> None:
    if name not in names:
        found = f"its columns are {', '.join(map(str, names))}" if len(names) else f"got {shown(table)}"
        fix = f": pass the table itself, or Column({name!r}, table=...)" if isinstance(table, Source) else ""
        raise ValueError(f"no column {name!r} in the table: {found}{fix}")
    refuse_twins([name], names)


def _as_pictures(values: Sequence[object], name: str, folder: bytes) -> BytesColumn | list[bytes]:
    """Return the paths of pictures, or their content."""
    contents = [value.get("bytes") if isinstance(value, dict) else value for value in values]
    held = [each for each in contents if isinstance(each, bytes)]
    if held and len(held) == len(values):
        return BytesColumn(held)
    paths: list[bytes] = []
    for index, value in enumerate(values):
        path = value.get("path") if isinstance(value, dict) else value
        if not isinstance(path, str) or not path:
            raise ValueError(
                f"column {name!r} must contain a path or a file for each sample, got {shown(path)} for {index}"
            )
        paths.append(os.path.join(folder, os.fsencode(path)))
    return paths


def _folder(table: object, root: AnyPath | None) -> bytes:
    if root is not None:
        return as_root(root)
    return folder_of(absolute(os.fsencode(table))) if isinstance(table, (str, bytes, os.PathLike)) else os.getcwdb()


def _parse(value: object, name: str) -> object:
    if value is None:
        return []
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"column {name!r} must contain JSON, got {shown(value)} ({error})") from None
