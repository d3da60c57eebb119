"""Measuring time and peak memory of training steps, each strategy in a process of its own."""

from memmodel.bench.machine import describe_machine
from memmodel.bench.measure import measure
from memmodel.bench.strategy import Measurement, Strategy

__all__ = ["Measurement", "Strategy", "describe_machine", "measure"]
