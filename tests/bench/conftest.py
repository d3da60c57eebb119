"""The scripts in benchmarks/ are no package: make them importable for the tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
