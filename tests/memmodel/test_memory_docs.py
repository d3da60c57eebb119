"""The guide's code runs as it stands."""

import re
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "slot-memory.md"


def test_guide_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert names["layer"].weight.grad.any()  # type: ignore[attr-defined]
    assert names["buffer"][3, 999].any()  # type: ignore[index]
