"""The policy for bad samples: they raise an error, or are replaced and listed in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.loaders.order.ledger import BadSample, EpochLedger
from penstock.pipelines.messages.checked import checked_choice, checked_number, set_checked


@dataclass(frozen=True, kw_only=True)
class BadSamplePolicy:
    """Settings for bad samples. Raises ValueError for settings that cannot work.

    Attributes:
        on_bad_sample: "raise" stops at the first bad sample in order; "replace" continues with a substitute.
        on_repaired: what to do with an image in which libjpeg filled in missing data: "count" serves and counts it,
            "raise" and "replace" treat it as a bad sample, "ignore" does not check for it.
        max_bad: bad samples allowed per epoch on this rank before E-MAXBAD: a count, a fraction of the epoch's
            samples (a float below 1), or None for no limit.
        samples_per_epoch: samples per epoch on this rank, the base of a fraction.
        evaluation: whether a bad sample's row becomes padding, so that no other sample counts twice.
    """

    on_bad_sample: str = "raise"
    on_repaired: str = "count"
    max_bad: int | float | None = None
    samples_per_epoch: int = 0
    evaluation: bool = False

    def __post_init__(self) -> None:
        checked_choice("on_bad_sample", self.on_bad_sample, ("raise", "replace"))
        checked_choice("on_repaired", self.on_repaired, ("count", "raise", "replace", "ignore"))
        if self.max_bad is not None:
            set_checked(self, max_bad=checked_number("max_bad", self.max_bad, 0))
            if self.max_bad > 1 and self.max_bad % 1:
                raise ValueError(f"max_bad must be a count or a fraction below 1, got {self.max_bad}")

    @property
    def substitutes(self) -> bool:
        """Return whether workers must find a substitute for a bad sample."""
        return "replace" in (self.on_bad_sample, self.on_repaired)

    @property
    def limit(self) -> float:
        """Return the number of bad samples allowed per epoch. It may be fractional or infinite."""
        if self.max_bad is None:
            return float("inf")
        fraction = isinstance(self.max_bad, float) and self.max_bad < 1
        return self.max_bad * self.samples_per_epoch if fraction else self.max_bad

    def judge(
        self, bad: Sequence[BadSample], ledger: EpochLedger, misread: Sequence[BadSample] = (), **where: int | str
    ) -> None:
        """Raise LoaderError if the bad samples of a batch, or those decoded wrongly (`misread`), are not allowed.

        ledger: the bad samples allowed so far. where: fields of the error, such as backend and rank.
        """
        for entry in (*misread, *bad):
            if (self.on_repaired if entry.code == "E-REPAIRED" else self.on_bad_sample) == "raise":
                raise entry.error(**where)
        if not bad:
            return
        cause, named = "", bad[0]
        if len(ledger.bad) + len(bad) > self.limit:
            of = f" of {self.samples_per_epoch}" if self.limit != self.max_bad else ""
            cause = (
                f"{len(ledger.bad) + len(bad)} bad samples in epoch {ledger.epoch}, max_bad is {self.max_bad:g}{of}; "
                f"latest: {named.code} {named.cause}"
            )
        elif lost := [entry for entry in bad if entry.substitute < 0 and not self.evaluation]:
            named = lost[0]
            cause = f"no good sample follows it to replace it ({named.code} {named.cause})"
        if cause:
            raise named._replace(code="E-MAXBAD", cause=cause, fix="", raised=None).error(**where)
