"""The orders named in saved states, in the words of create_loader's options."""

from __future__ import annotations

import re

from penstock.pipelines.errors import count_text

# The name of an order in states -> the options that made it, and what the digest in its name covers.
_OPTIONS = (
    (r"weighted-1 (?P<digest>\w+) (?P<n>\d+)", "weights=", "other weights"),
    (
        r"classes-1 (?P<p>\d+) x (?P<k>\d+) in (?P<n>\d+) (?P<digest>\w+)",
        "shuffle=PerClass({k}) and batch_size={batch}",
        "other classes, see small=",
    ),
    (r"repeats-1 of (?P<k>\d+) in (?P<n>\d+)", "shuffle=Repeated({k})", ""),
    (r"blocks-2 of (?P<k>\d+) in groups of (?P<p>\d+) over \d+ lanes", "shuffle=Blocks(samples={k}, group={p})", ""),
    (
        r"blocks-2 of sizes (?P<digest>\w+) in groups of (?P<p>\d+) over \d+ lanes",
        "shuffle=Blocks(group={p})",
        "other row groups",
    ),
    (r"buckets-1 (?P<digest>\w+)", "buckets=", "other buckets"),
    (r"mixed-1 (?P<digest>\w+)", "a mix(...)", "other shares, sizes or epoch_samples"),
    (r"own-1", "order=", ""),
    (r"feistel-1", "shuffle={shuffle}", ""),
)


def compare_samplers(saved: str, mine: str, *, shuffle: bool) -> str:
    """Return how the order in a state differs from that of this loader, as a sentence."""
    (told, saved_digest, differs), (own, digest, _) = (_read(name, shuffle) for name in (saved, mine))
    if told == own and saved_digest == digest:  # they differ in numbers that no option sets
        told, own = repr(saved), repr(mine)
    if told != own:
        return f"the state was saved with {told}, this loader has {own}"
    return f"the state was saved with {differs} (both have {own}; saved digest {saved_digest}, now {digest})"


def _read(name: str, shuffle: bool) -> tuple[str, str, str]:
    """Return the options of an order, the digest in its name, and what another digest means; "" if it has none."""
    epoch = re.fullmatch(r"epochs-1 of (\d+): (.*)", name)
    if epoch is not None:
        told, digest, differs = _read(epoch[2], shuffle)
        return f"{told} and epoch_samples={epoch[1]}", digest, differs
    for pattern, options, differs in _OPTIONS:
        found = re.fullmatch(pattern, name)
        if found is not None:
            values = found.groupdict()
            batch = int(values.get("p") or 0) * int(values.get("k") or 0)
            told = options.format(**values, batch=batch, shuffle=shuffle)
            told += f" and {count_text(int(values['n']), 'sample')} per epoch" if "n" in values else ""
            return told, values.get("digest", ""), differs
    return f"the order {name!r}", "", ""
