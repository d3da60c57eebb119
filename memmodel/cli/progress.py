"""Progress bars that suit a terminal and a log file."""

import sys
from typing import Any

from tqdm import tqdm


def progress_bar(**arguments: Any) -> "tqdm[Any]":
    """A tqdm bar on stderr; a log file gets a line every ten seconds instead of ten a second."""
    return tqdm(mininterval=0.1 if sys.stderr.isatty() else 10.0, **arguments)
