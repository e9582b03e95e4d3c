"""How a storage is accessed: options of all requests of a data set."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from penstock.pipelines.messages.checked import checked_number

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.1
_OWN = ("range", "host", "content-length", "accept-encoding", "connection", "transfer-encoding")  # set by the clients


class Headers(str):
    """Header lines of requests by HTTP: printed, stored or logged, only their names are seen.

    Attributes:
        pairs: names and values.
    """

    __slots__ = ("pairs",)
    pairs: tuple[tuple[str, str], ...]

    def __new__(cls, given: object) -> Headers:
        """Take a mapping {name: value}. Raises ValueError, which never contains a value."""
        if isinstance(given, Headers):
            return given
        if not isinstance(given, Mapping):
            raise ValueError("headers must be a mapping {name: value}")
        for name, value in given.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ValueError("headers must have names of letters, digits and dashes")
            if name.lower() in _OWN or name.lower().startswith("if-"):
                raise ValueError(f"headers must not contain {name}, which each request sets itself")
            if not isinstance(value, str) or not value.isprintable() or not value.isascii():
                raise ValueError(f"headers must have values of printable ASCII characters, the value of {name} has not")
        if len({name.lower() for name in given}) < len(given):
            raise ValueError("headers must have different names")
        self = super().__new__(cls, "; ".join(f"{name}: ***" for name in given))
        self.pairs = tuple(given.items())
        return self

    @staticmethod
    def parse(lines: Sequence[str]) -> Headers:
        """Return the headers of lines "NAME: VALUE"."""
        parts = [line.partition(":") for line in lines]
        if not all(colon for _, colon, _ in parts):
            raise ValueError("a header must be NAME:VALUE")
        return Headers({name.strip(): value.strip() for name, _, value in parts})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Headers) and self.pairs == other.pairs

    def __ne__(self, other: object) -> bool:
        return not self == other  # str has its own

    def __hash__(self) -> int:
        return hash(self.pairs)

    def __reduce__(self) -> tuple[object, ...]:
        return Headers, (dict(self.pairs),)


NO_HEADERS = Headers({})


@dataclass(frozen=True, kw_only=True)
class Access:
    """Options of all requests for the objects of a data set.

    Attributes:
        retry_s: seconds for which a request that fails temporarily is repeated.
        headers: headers of requests by HTTP; a mapping {name: value} is accepted.
    """

    retry_s: float = 300.0
    headers: Headers = NO_HEADERS

    def __post_init__(self) -> None:
        checked_number("retry_s", self.retry_s, 0)
        object.__setattr__(self, "headers", Headers(self.headers))

    @staticmethod
    def among(options: Mapping[str, Any]) -> Access:
        """Return the access in the options of an opener; None means that an option was not given."""
        names = (field.name for field in fields(Access))
        return Access(**{name: options[name] for name in names if options.get(name) is not None})


DEFAULT = Access()
