import pytest
import torch
from torch import nn

from memmodel.bench.training import make_cat, make_cell, make_memmodel

SIZES = {"batch": 2, "slot": [4], "steps": 5, "start_slots": 2, "compile": False}


class Mean(nn.Module):
    """A cell of the user's own, for slots of any shape."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.5))

    def forward(self, prefix, inputs=None):
        slot = torch.tanh(self.gain * prefix.mean(1))
        return slot if inputs is None else slot + inputs.sum(1)[:, None, None]


def make_mean():
    return Mean()


@pytest.mark.parametrize("cell", ["attention", "rnn", "gru", "lstm"])
def test_both_strategies_do_the_same_work(cell, device):
    old = make_cat(cell=cell, device=str(device), **SIZES)()
    new = make_memmodel(cell=cell, device=str(device), **SIZES)()
    assert old.keys() == new.keys() >= {"loss", "start"}
    torch.testing.assert_close(old, new)
    assert all(gradient.abs().max() > 0 for gradient in new.values())


def test_cells_may_take_inputs():
    sizes = SIZES | {"input_width": 3}
    torch.testing.assert_close(
        make_cat(cell="attention", **sizes)(), make_memmodel(cell="attention", **sizes)()
    )


def test_cells_of_the_users_own():
    sizes = SIZES | {"cell": f"{__name__}:make_mean", "slot": [3, 4], "input_width": 2}
    old, new = make_cat(**sizes)(), make_memmodel(**sizes)()
    assert new.keys() == {"loss", "start", "gain"}
    torch.testing.assert_close(old, new)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("transformer", [4]), "cell must be one of attention, gru, lstm, rnn or 'module:"),
        (("gru", [4, 4]), r"slot must be one width for the gru cell, got \(4, 4\)"),
        (("gru", [4], 3), "input_width must be None for the gru cell, got 3"),
    ],
)
def test_cells_that_cannot_be_made_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_cell(*arguments)
