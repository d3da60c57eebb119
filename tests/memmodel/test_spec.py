"""What a cell may say about its tensors, and what is refused."""

from typing import Any

import pytest
import torch
from torch import nn

from memmodel import AttentionCell, CellSpec, RecurrentCell, SlotSpec, rollout
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


def test_dtypes_follow_the_parameters_unless_named() -> None:
    cell = Said(CellSpec((4,), SlotSpec((), torch.int64)))
    cell.layer = nn.Linear(2, 2, dtype=torch.float64)
    spec = spec_of(cell)
    assert spec is not None
    assert spec.slot.dtype == torch.float64
    assert spec.inputs.dtype == torch.int64


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
        ({"slot": 5}, "slot must be a shape or a SlotSpec, got 5"),
        ({"slot": (-1,)}, "slot must be a shape"),
        ({"slot": None}, "slot must be a shape"),
        ({"slot": (3,), "inputs": "x"}, "inputs must be a shape or a SlotSpec, got 'x'"),
    ],
)
def test_specs_that_break_a_rule(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CellSpec(**arguments)


def test_sizes_that_break_a_rule() -> None:
    with pytest.raises(ValueError, match="shape must be a tuple of sizes"):
        SlotSpec((1.5,))  # type: ignore[arg-type]


class TestRollout:
    """Start and inputs are checked first, with a message that names both shapes."""

    cell = AttentionCell(4, input_dim=3)

    def test_slots_of_another_shape(self) -> None:
        message = r"start must be \(B, k0, 4\) for AttentionCell, got shape \(2, 1, 5\)"
        with pytest.raises(ValueError, match=message):
            rollout(self.cell, torch.randn(2, 1, 5), 2, torch.randn(2, 2, 3))

    def test_inputs_of_another_shape(self) -> None:
        message = r"inputs must be \(B, steps, 3\) for AttentionCell, got shape \(2, 2, 4\)"
        with pytest.raises(ValueError, match=message):
            rollout(self.cell, torch.randn(2, 1, 4), 2, torch.randn(2, 2, 4))

    def test_inputs_missing_or_not_taken(self) -> None:
        with pytest.raises(ValueError, match=r"inputs must be \(B, steps, 3\) .* got None"):
            rollout(self.cell, torch.randn(2, 1, 4), 2)
        with pytest.raises(ValueError, match="inputs must be None for AttentionCell, got shape"):
            rollout(AttentionCell(4), torch.randn(2, 1, 4), 2, torch.randn(2, 2, 4))

    def test_another_kind_of_dtype(self) -> None:
        with pytest.raises(ValueError, match=r"torch\.float32, got torch\.int64"):
            rollout(AttentionCell(4), torch.ones(2, 1, 4, dtype=torch.int64), 2)

    def test_a_single_first_slot(self) -> None:
        with pytest.raises(ValueError, match=r"pass x\[:, None\]"):
            rollout(AttentionCell(4), torch.randn(2, 4), 2)

    def test_a_single_first_slot_without_a_spec(self) -> None:
        gru = nn.GRUCell(4, 4)
        with pytest.raises(Exception) as caught:  # noqa: PT011  (whatever the cell raises)
            rollout(lambda prefix: gru(prefix[:, -1]), torch.randn(2, 4), 2)
        assert any("pass x[:, None]" in note for note in caught.value.__notes__)
