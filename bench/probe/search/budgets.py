"""Limits on a loader's use of the machine, and smaller settings for one that exceeds them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.bench.probe.search.candidate import Candidate
from penstock.bench.probe.search.trials import Trial
from penstock.loaders.dali.dali_engine import default_readers

_NOISE = 1.05  # tolerance: a worker that is always busy, plus the consumer's small share


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """Limits of a loader: busy CPUs, and MB in addition to those of the process; None: no limit."""

    max_cpu: float | None = None
    max_memory: float | None = None

    def refuses(self, trial: Trial) -> str:
        """Return why a loader with these measurements may not be chosen; "" if it may."""
        reasons = []
        if _share(trial.cpu_cores, self.max_cpu) > _NOISE:
            reasons.append(f"{trial.cpu_cores:.2f} processors, --max-cpu is {self.max_cpu:g}")
        if _share(trial.memory_mb, self.max_memory) > 1:
            reasons.append(f"{trial.memory_mb:,.0f} MB, --max-memory is {self.max_memory:,.0f}")
        return "; ".join(reasons) and f"over budget: {'; '.join(reasons)}"

    def excess(self, trial: Trial) -> float:
        """Return the used share of the budget, of CPUs or of memory, whichever is larger."""
        return max(_share(trial.cpu_cores, self.max_cpu), _share(trial.memory_mb, self.max_memory))

    def too_many(self, workers: int, best: Candidate, trial: Trial | None) -> bool:
        """Return whether `workers` would use too many CPUs, extrapolated from `best` in `trial`."""
        if self.max_cpu is None or workers <= self.max_cpu:
            return False
        if trial is None or trial.cpu_cores is None or not best.workers:
            return True
        return trial.cpu_cores / best.workers * workers > _NOISE * self.max_cpu

    def smaller(self, candidate: Candidate, trial: Trial, *, fewer_workers: bool = True) -> Candidate | None:
        """Return a smaller candidate to try after `candidate` exceeded the budget; None if there is none.

        Over CPUs: fewer workers, in proportion. Over memory: one batch ahead, then threads, then fewer workers.
        """
        cpu, memory = _share(trial.cpu_cores, self.max_cpu), _share(trial.memory_mb, self.max_memory)
        if candidate.workers and memory > 1 >= cpu / _NOISE:
            if int(candidate.options.get("prefetch") or 1) > 1:
                return candidate.with_option("prefetch", 1)
            if candidate.has_processes and candidate.backend == "hdf5":
                return candidate.with_option("workers_are", "threads")
        if not candidate.workers or not fewer_workers:
            return None
        workers = min(candidate.workers - 1, max(1, int(candidate.workers / max(cpu, memory))))
        fewer = candidate.with_option("workers", workers)
        if "readers" in fewer.options:
            fewer = fewer.with_option("readers", max(1, default_readers(workers)))
        return fewer


def _share(used: float | None, limit: float | None) -> float:
    return 0.0 if used is None or limit is None else used / limit
