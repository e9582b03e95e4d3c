"""Forty kinds of faulty servers: what each does, and which outcomes of a loader are right; see remote_faults.py."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from faulty_server import Ask, Web

from penstock.loaders import Blocks

PER_TAR = 48  # images
SECRET = "X-Amz-Signature=secret"
SERVED, REFUSED = {"served"}, {"refused"}
EITHER, NEVER_WRONG = SERVED | REFUSED, {"served", "refused", "ended"}


@dataclass(frozen=True)
class Kind:
    """A faulty server.

    Attributes:
        name: what the server does.
        fault: answers the requests that fail.
        right: the outcomes that are right.
        words: one of them must be in the error.
        data: URL below the server, or with s3://; a folder of images, or tars.
        samples: number of images.
        settings: of the loader.
        web: more attributes of the server.
        tls: whether the server's certificate is unknown.
    """

    name: str
    fault: Callable[[Ask, Web], Any]
    right: set[str]
    words: str = ""
    data: str = "/data/{0..1}.tar"
    samples: int = 96
    settings: dict[str, Any] = field(default_factory=dict)
    web: dict[str, Any] = field(default_factory=dict)
    tls: bool = False


S3 = "s3://data/{0..1}.tar"
KEYS = "s3://data/photos/"
SIGNED = "/data/0.tar?X-Amz-Expires=600&" + SECRET


def until(seconds: float, then: Callable[[Ask, float], Any]) -> Callable[[Ask, Web], Any]:
    """Return a fault of the first seconds of a run; `then` gets the request and the seconds that are left."""
    return lambda ask, web: web.since("run") < seconds and then(ask, seconds - web.since("run"))


def _in(seconds: float) -> str:
    return email.utils.formatdate(time.time() + seconds + 1, usegmt=True)


def _signed(ask: Ask, web: Web, *, end: float) -> Any:
    """Answer as a store does for URLs that are signed for GET, and expired from request `end` on."""
    if ask.command == "HEAD" or SECRET not in ask.path:
        return ask.error(403, "SignatureDoesNotMatch", "The request signature we calculated does not match")
    return web.number > end and ask.error(403, "AccessDenied", "Request has expired")


def _region(ask: Ask, web: Web) -> Any:
    """Answer as S3 does for a bucket in eu-west-1."""
    there = {"x-amz-bucket-region": "eu-west-1"}
    signed = "/eu-west-1/s3/" in ask.headers.get("Authorization", "")
    return not signed and ask.error(301, "PermanentRedirect", "use the bucket's endpoint", **there)


def _redirect(ask: Ask, web: Web) -> Any:
    there = web.url.replace("127.0.0.1", "localhost") + ask.path
    return not ask.headers["Host"].startswith("localhost") and ask.say(302, Location=there)


def _old(ask: Ask, web: Web) -> Any:
    ask.protocol_version = "HTTP/1.0"
    return ask.give(close=True)


def _lists_on(ask: Ask) -> bool:
    """Return whether a request is for the second page of a listing."""
    return "list-type=2" in ask.path and "continuation-token=10" in ask.path


def _busy_page(ask: Ask, web: Web) -> Any:
    return _lists_on(ask) and web.since("page", running=False) < 20 and ask.error(*BUSY)


def _cut_page(ask: Ask, web: Web) -> Any:
    """End a page of the listing within a key, with a length that matches."""
    path, _, _ = ask.path.partition("?")
    if _lists_on(ask):
        text = web.list(path, {"prefix": ["photos/"], "continuation-token": ["10"]})
        return ask.say(200, text[: text.rindex(b"<Key>") + 9])
    return None


SLOW_DOWN = ("SlowDown", "Please reduce your request rate.")
BUSY = 503, *SLOW_DOWN
KINDS = [
    Kind("503 for 20 s", until(20, lambda ask, left: ask.error(*BUSY)), SERVED),
    Kind("503 for 90 s", until(90, lambda ask, left: ask.error(*BUSY)), SERVED),
    Kind(
        "429 for 20 s, Retry-After in seconds",
        until(20, lambda ask, left: ask.error(429, *SLOW_DOWN, Retry_After=f"{left + 1:.0f}")),
        SERVED,
    ),
    Kind(
        "429 for 20 s, Retry-After as a date",
        until(20, lambda ask, left: ask.error(429, *SLOW_DOWN, Retry_After=_in(left))),
        SERVED,
    ),
    Kind("500 for 20 s", until(20, lambda ask, left: ask.error(500, "InternalError")), SERVED),
    Kind("every third connection reset before the headers", lambda ask, web: web.every(3) and ask.reset(), SERVED),
    Kind(
        "every third connection reset within the body",
        lambda ask, web: web.every(3) and ask.give(cut=0.5, reset=True),
        SERVED,
    ),
    Kind("every third body cut", lambda ask, web: web.every(3) and ask.give(cut=0.5), SERVED),
    Kind("every fortieth answer at 20 bytes/s", lambda ask, web: web.every(40) and ask.give(pause_s=0.05), SERVED),
    Kind("no answer to every fortieth request", lambda ask, web: web.every(40) and ask.hang(), SERVED),
    Kind(
        "answers shorter than their range",
        lambda ask, web: web.running and ask.give(fewer=100),
        NEVER_WRONG,
    ),
    Kind("the whole object instead of a range", lambda ask, web: web.running and ask.give(whole=True), NEVER_WRONG),
    Kind(
        "another range than asked, and says so",
        lambda ask, web: web.running and ask.give(shift=len(web.files["/data/photos/c0/0000.jpg"])),
        NEVER_WRONG,
    ),
    Kind(
        "another range than asked, every third time",
        lambda ask, web: web.every(3) and ask.give(shift=1024),
        SERVED,
    ),
    Kind(
        "replaced before the run, same length",
        lambda ask, web: web.running and ask.give(files=web.other, tag='"b"'),
        REFUSED,
        "replaced|changed",
    ),
    Kind(
        "replaced within the run, same length",
        lambda ask, web: web.number > 20 and ask.give(files=web.other, tag='"b"', date=_in(0)),
        REFUSED,
        "replaced|changed",
    ),
    Kind(
        "ETag weak and strong in turn",
        lambda ask, web: ask.give(tag='W/"a"' if web.number % 2 else '"a"'),
        SERVED,
    ),
    Kind("three mirrors with ETags of their own", lambda ask, web: ask.give(tag=f'"m{web.number % 3}"'), SERVED),
    Kind("neither ETag nor date", lambda ask, web: ask.give(tag=None, date=None), SERVED),
    Kind("no HEAD", lambda ask, web: ask.command == "HEAD" and ask.say(405), SERVED),
    Kind("presigned for GET", lambda ask, web: _signed(ask, web, end=1e9), SERVED, data=SIGNED, samples=48),
    Kind(
        "signature expires within the run",
        lambda ask, web: _signed(ask, web, end=10),
        REFUSED,
        "expired|AccessDenied",
        data=SIGNED,
        samples=48,
    ),
    Kind("redirect to another host", _redirect, SERVED),
    Kind("403 for ten requests", lambda ask, web: 20 < web.number <= 30 and ask.error(403, "AccessDenied"), EITHER),
    Kind(
        "404 within the run",
        lambda ask, web: web.number > 20 and ask.error(404, "NoSuchKey"),
        REFUSED,
        "no such|missing|404",
    ),
    Kind("S3: another region", _region, SERVED, data=S3),
    Kind(
        "S3: the clock is wrong",
        lambda ask, web: ask.error(403, "RequestTimeTooSkewed", "The difference is too large."),
        REFUSED,
        "clock|RequestTimeTooSkewed",
        data=S3,
    ),
    Kind(
        "S3: InternalError with status 200, every third",
        lambda ask, web: web.every(3) and ask.error(200, "InternalError", "We encountered an internal error"),
        SERVED,
        data=S3,
    ),
    Kind("compressed although nobody asked", lambda ask, web: ask.give(packed=True), EITHER),
    Kind("certificate unknown", lambda ask, web: None, REFUSED, "certificate|issuer", tls=True),
    Kind("nobody listens for 10 s", lambda ask, web: web.number == 1 and web.outage(10), SERVED),
    Kind("host unknown", lambda ask, web: None, REFUSED, "host|resolve|dns", data="http://no-such-host.invalid/0.tar"),
    Kind(
        "a slow line, by blocks",
        lambda ask, web: None,
        SERVED,
        samples=384,
        settings={
            "shuffle": Blocks(samples=96, group=2),
            "requests": 64,
            "bytes_ahead": 1 << 28,
            "local_cache": "copy",
        },
        web={"bytes_per_s": 30_000},
    ),
    Kind("S3: 503 for 20 s on the second page of a list", _busy_page, SERVED, data=KEYS),
    Kind("S3: a page of a list cut, length matches", _cut_page, NEVER_WRONG, data=KEYS),
    Kind("connection closed after each answer, unsaid", lambda ask, web: ask.give(close=True), SERVED),
    Kind("HTTP/1.0", _old, SERVED),
    Kind("chunks of 16 bytes, no length", lambda ask, web: ask.command == "GET" and ask.give(chunk=16), EITHER),
    Kind("very many small objects", lambda ask, web: None, SERVED, data=KEYS, samples=960, settings={"side": 4}),
    Kind("killed within the run, back after 15 s", lambda ask, web: web.number == 20 and web.outage(15), SERVED),
]
