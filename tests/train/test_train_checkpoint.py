import json
import stat

import pytest
import torch
from torch import nn

from memmodel import MemoryNetwork, RecurrentCell
from memmodel.train.checkpoint import (
    load_checkpoint,
    save_checkpoint,
    save_network,
    write_atomically,
    write_json,
)


def test_round_trip(tmp_path):
    state = {"weights": torch.arange(3.0), "history": [{"loss": 0.1}], "epoch": 3}
    assert load_checkpoint(tmp_path) is None
    save_checkpoint(tmp_path, state)
    loaded = load_checkpoint(tmp_path)
    torch.testing.assert_close(loaded.pop("weights"), state.pop("weights"))
    assert loaded == state


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})

    def fail(temporary):
        temporary.write_text("half of it")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, fail)
    assert json.loads(path.read_text()) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_files_have_ordinary_permissions(tmp_path):
    (tmp_path / "plain").write_text("")
    write_json(tmp_path / "x.json", {})
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_a_damaged_checkpoint_is_named(tmp_path):
    save_checkpoint(tmp_path, {"weights": torch.zeros(100)})
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"checkpoint.pt is not a checkpoint that can be read"):
        load_checkpoint(tmp_path)


def test_network(tmp_path):
    network = MemoryNetwork(RecurrentCell(nn.GRU(3, 3, batch_first=True)), nn.Linear(3, 1))
    save_network(network, tmp_path)
    loaded = MemoryNetwork.load(tmp_path)
    start = torch.randn(2, 4, 3)
    torch.testing.assert_close(loaded(start, 2), network(start, 2), rtol=0, atol=0)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
