"""Forecasting with a network, and measuring forecasts."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from memmodel.network import MemoryNetwork
from memmodel.train.baselines import baselines
from memmodel.train.model import takes_inputs
from memmodel.train.preprocessing import Preprocessing
from memmodel.train.split import Values, Windows

_ROWS = 256  # windows per batch when no gradient is needed


def to_tensors(
    network: MemoryNetwork,
    preprocessing: Preprocessing,
    observed: Values,
    scale: Values,
    device: torch.device,
) -> tuple[Tensor, Tensor | None]:
    """Start slots ``(B, W, D)`` and, where the cell takes them, inputs ``(B, H, I)``."""
    start, inputs = preprocessing.encode(observed, scale)
    on_device = torch.from_numpy(start).to(device)
    if not takes_inputs(network):
        return on_device, None
    return on_device, torch.from_numpy(inputs).to(device)


@torch.no_grad()
def forecast(
    network: MemoryNetwork,
    preprocessing: Preprocessing,
    observed: Values,
    scale: Values,
    device: torch.device,
) -> Values:
    """Forecast ``(B, H)``, in the data's units, what follows the windows ``(B, W)``."""
    network.eval()
    forecasts = []
    for first in range(0, len(observed), _ROWS):
        rows = slice(first, first + _ROWS)
        start, inputs = to_tensors(network, preprocessing, observed[rows], scale[rows], device)
        output = network(start, preprocessing.horizon, inputs).cpu().numpy()
        forecasts.append(preprocessing.decode(output, observed[rows], scale[rows]))
    return np.concatenate(forecasts)


def mean_scaled_error(
    network: MemoryNetwork,
    windows: Windows,
    scales: Values,
    preprocessing: Preprocessing,
    device: torch.device,
) -> float:
    """Mean absolute error over ``windows``, each in units of its series' scale."""
    total = 0.0
    for observed, future, scale in _chunks(windows, scales):
        error = np.abs(forecast(network, preprocessing, observed, scale, device) - future)
        total += float((error.mean(axis=1) / scale).sum())
    return total / len(windows)


def measure(
    network: MemoryNetwork,
    windows: Windows,
    scales: Values,
    preprocessing: Preprocessing,
    device: torch.device,
) -> dict[str, dict[str, float]]:
    """Mean absolute error of the network and of each baseline, in the data's units.

    Returns:
        series name -> {"memmodel": error, baseline's name: error, ...}.
    """
    sums: dict[str, dict[str, float]] = {one.name: {} for one in windows.series}
    for index, one in enumerate(windows.series):
        rows = np.flatnonzero(windows.which == index)
        for chunk in np.array_split(rows, -(-len(rows) // _ROWS)):
            observed, future = windows.take(chunk)
            scale = scales[windows.which[chunk]]
            forecasts = {
                "memmodel": forecast(network, preprocessing, observed, scale, device),
                **baselines(observed, preprocessing.horizon, preprocessing.periods),
            }
            for name, values in forecasts.items():
                error = float(np.abs(values - future).mean(axis=1).sum()) / len(rows)
                sums[one.name][name] = sums[one.name].get(name, 0.0) + error
    return sums


def _chunks(windows: Windows, scales: Values) -> Iterator[tuple[Values, Values, Values]]:
    for first in range(0, len(windows), _ROWS):
        rows = slice(first, first + _ROWS)
        observed, future = windows.take(rows)
        yield observed, future, scales[windows.which[rows]]
