"""Do two strategies compute the same thing?"""

import numpy as np

from memmodel.bench.process import StrategyError


def largest_deviation(path: str, reference: str) -> float:
    """Largest absolute difference of any output, relative to the largest magnitude of that output.

    Args:
        path: outputs of a strategy, as .npz.
        reference: outputs of the reference strategy, as .npz.

    Raises:
        StrategyError: names or shapes of the outputs differ.
    """
    with np.load(path) as outputs, np.load(reference) as expected:
        if set(outputs) != set(expected):
            raise StrategyError(
                f"it returned {sorted(outputs)}, the reference returned {sorted(expected)}"
            )
        return max(_deviation(name, outputs[name], expected[name]) for name in expected)


def _deviation(name: str, value: np.ndarray, expected: np.ndarray) -> float:
    if value.shape != expected.shape:
        raise StrategyError(f"{name} has shape {value.shape}, the reference's has {expected.shape}")
    if not expected.size:
        return 0.0
    scale = float(np.abs(expected).max()) or 1.0
    return float(np.abs(value.astype(np.float64) - expected).max()) / scale
