"""What a cell may say about its tensors, and what is refused."""

from typing import Any

import pytest
import torch
from torch import nn

from memmodel import AttentionCell, CellSpec, ContextSpec, RecurrentCell, SlotSpec
from memmodel.spec import spec_of


class Said(nn.Module):
    def __init__(self, spec: Any) -> None:
        super().__init__()
        self.said = spec

    def spec(self) -> Any:
        return self.said


def test_the_short_form_is_a_tree_of_one_leaf() -> None:
    spec = spec_of(Said(CellSpec((4, 2), (3,))))
    assert spec is not None
    assert spec.slot == SlotSpec((4, 2), torch.float32)
    assert spec.inputs == SlotSpec((3,), torch.float32)
    assert spec.context is None


def test_dtypes_follow_the_parameters_unless_named() -> None:
    cell = Said(CellSpec({"x": SlotSpec((4,)), "id": SlotSpec((), torch.int64)}))
    cell.layer = nn.Linear(2, 2, dtype=torch.float64)
    spec = spec_of(cell)
    assert spec is not None
    assert spec.slot["x"].dtype == torch.float64
    assert spec.slot["id"].dtype == torch.int64


def test_our_own_cells_have_one() -> None:
    attention = spec_of(AttentionCell(4, input_dim=3))
    recurrent = spec_of(RecurrentCell(nn.GRU(5, 5, dtype=torch.float64)))
    assert attention is not None
    assert recurrent is not None
    assert attention.inputs == SlotSpec((3,), torch.float32)
    assert recurrent.slot == SlotSpec((5,), torch.float64)


def test_no_spec() -> None:
    assert spec_of(nn.Linear(2, 2)) is None
    assert spec_of(lambda prefix: prefix) is None


def test_something_else_than_a_spec() -> None:
    with pytest.raises(TypeError, match=r"must return a memmodel\.CellSpec, got dict"):
        spec_of(Said({"slot": 4}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"slot": 5}, "slot must be a shape or a tree of SlotSpec, got 5"),
        ({"slot": (-1,)}, "slot must be a shape"),
        ({"slot": None}, "slot must be a shape"),
        ({"slot": (3,), "inputs": "x"}, "inputs must be a shape or a tree of SlotSpec, got 'x'"),
        ({"slot": (3,), "context": (3,)}, "context must be a tree of ContextSpec, got 3"),
    ],
)
def test_specs_that_break_a_rule(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CellSpec(**arguments)


def test_sizes_that_break_a_rule() -> None:
    with pytest.raises(ValueError, match="shape must be a tuple of sizes"):
        SlotSpec((1.5,))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shape must be a tuple of sizes and names"):
        ContextSpec((-2,))
    assert ContextSpec(("tokens", 4)).shape == ("tokens", 4)
