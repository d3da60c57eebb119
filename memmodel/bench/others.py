"""How much processor time other processes took while we measured."""

import os
import resource
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_TICKS = os.sysconf("SC_CLK_TCK")


class OtherProcesses:
    """Starts counting when made; see :meth:`share`. Counts nothing where there is no /proc/stat."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._busy = _busy_seconds()
        self._own = _own_seconds()

    def share(self) -> float | None:
        """Share of all cores' time that processes other than ours took, from 0 to 1.

        Call it when our child processes have ended: their time is known only then.
        """
        if self._busy is None:
            return None
        busy = (_busy_seconds() or 0.0) - self._busy
        own = _own_seconds() - self._own
        available = (time.perf_counter() - self._begin) * (os.cpu_count() or 1)
        return max(0.0, busy - own) / available


def _busy_seconds() -> float | None:
    if not _STAT.exists():
        return None
    # proc(5), the line of all cores: user nice system idle iowait irq softirq steal ...
    user, nice, system = map(int, _STAT.read_text().split()[1:4])
    return (user + nice + system) / _TICKS


def _own_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
