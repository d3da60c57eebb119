"""The examples of the page on rollouts run."""

import re
from pathlib import Path

import torch

PAGE = Path(__file__).parents[2] / "docs" / "rollout.md"


def test_examples() -> None:
    torch.compiler.reset()
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["memory"].shape == (16, 101, 32)
