"""How much processor time other processes took while a strategy ran."""

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")


class OtherProcesses:
    """Counts from its making to :meth:`seconds`."""

    def __init__(self) -> None:
        self._busy = _busy_seconds()
        self._own = time.process_time()

    def seconds(self) -> float:
        """Processor seconds that other processes took; 0 where the system does not tell.

        The system counts in ticks of some 10 ms: add figures up before judging them.
        """
        return (_busy_seconds() - self._busy) - (time.process_time() - self._own)


def _busy_seconds() -> float:
    if not _STAT.exists():
        return time.process_time()
    # proc(5), the line of all cores: user nice system idle iowait irq softirq steal ...
    user, nice, system = map(int, _STAT.read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")
