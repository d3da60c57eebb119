"""The network: forward with and without a head, saving and loading."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rollout_cells import D, Mean, Tied, cat_loop, make
from safetensors.torch import load_file
from torch import Tensor, nn

from memmodel import AttentionCell, MemoryNetwork, RecurrentCell


def start(dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(3, 2, D, dtype=dtype)


class TestForward:
    def test_memory_without_a_head(self, device: torch.device) -> None:
        cell, begin = make("GRU", device), start(torch.float64).to(device)
        torch.testing.assert_close(MemoryNetwork(cell)(begin, 4), cat_loop(cell, begin, 4))

    def test_head_reads_the_new_slots(self, device: torch.device) -> None:
        cell, head = make("GRU", device), nn.Linear(D, 1).to(device, torch.float64)
        begin = start(torch.float64).to(device)
        expected = head(cat_loop(cell, begin, 4)[:, 2:])
        torch.testing.assert_close(MemoryNetwork(cell, head)(begin, 4), expected)

    def test_inputs(self) -> None:
        cell, inputs = Mean(), torch.randn(3, 4, D)
        network = MemoryNetwork(cell)
        torch.testing.assert_close(network(start(), 4, inputs), cat_loop(cell, start(), 4, inputs))
        with pytest.raises(ValueError, match="inputs must be"):
            network(start(), 3, inputs)

    def test_no_step(self) -> None:
        assert MemoryNetwork(Mean(), nn.Linear(D, 2))(start(), 0).shape == (3, 0, 2)


NETWORKS: dict[str, Callable[[], MemoryNetwork]] = {
    "attention": lambda: MemoryNetwork(AttentionCell(D, heads=2), nn.Linear(D, 1)),
    "recurrent": lambda: MemoryNetwork(RecurrentCell(nn.LSTM(D, D, 2, batch_first=True))),
    "head of layers": lambda: MemoryNetwork(
        RecurrentCell(nn.GRU(D, D)),
        nn.Sequential(nn.Linear(D, 8), nn.GELU("tanh"), nn.Linear(8, 1, bias=False)),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", NETWORKS)
def test_save_and_load(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    network = NETWORKS[name]().to(dtype)
    network.save(tmp_path / "run")
    loaded = MemoryNetwork.load(tmp_path / "run")
    assert all(parameter.dtype == dtype for parameter in loaded.parameters())
    torch.testing.assert_close(loaded(start(dtype), 3), network(start(dtype), 3))
    loaded(start(dtype), 3).float().sum().backward()
    assert all(parameter.grad is not None for parameter in loaded.parameters())


def test_no_file_but_the_two(tmp_path: Path) -> None:
    network = MemoryNetwork(AttentionCell(D))
    network.save(tmp_path)
    network.save(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX's")
def test_files_follow_the_umask(tmp_path: Path) -> None:
    for umask, mode in ((0o022, 0o644), (0o077, 0o600)):
        before = os.umask(umask)
        try:
            MemoryNetwork(AttentionCell(D)).save(tmp_path)
        finally:
            os.umask(before)
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {mode}


def test_saves_of_equal_networks_are_equal(tmp_path: Path) -> None:
    network = MemoryNetwork(AttentionCell(D))
    for name in ("one", "two"):
        network.save(tmp_path / name)
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


class TestOwnClasses:
    def test_an_instance_is_needed(self, tmp_path: Path) -> None:
        network = MemoryNetwork(Mean(), nn.Linear(D, 1))
        network.save(tmp_path)
        with pytest.raises(ValueError, match=r"cell is a .*Mean.*pass an instance as cell="):
            MemoryNetwork.load(tmp_path)
        loaded = MemoryNetwork.load(tmp_path, cell=Mean())
        torch.testing.assert_close(loaded(start(), 3), network(start(), 3))

    def test_a_cell_whose_name_or_parts_are_ours(self, tmp_path: Path) -> None:
        class Doubling(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return 2 * super().forward(x)

        changed = AttentionCell(D)
        changed.query = Doubling(D, D)
        namesake = type("AttentionCell", (AttentionCell,), {})(D)
        for cell in (changed, namesake):
            MemoryNetwork(cell).save(tmp_path)
            with pytest.raises(ValueError, match="pass an instance as cell="):
                MemoryNetwork.load(tmp_path)

    def test_weights_that_do_not_fit(self, tmp_path: Path) -> None:
        MemoryNetwork(Mean()).save(tmp_path)
        with pytest.raises(ValueError, match=r"'cell\.layer\.weight' has shape \(4, 4\) there"):
            MemoryNetwork.load(tmp_path, cell=Mean(nn.Linear(D, 2, bias=True)))


class TestTies:
    def test_cell_and_head(self, tmp_path: Path) -> None:
        cell = AttentionCell(D)
        network = MemoryNetwork(cell, nn.Linear(D, D))
        network.head.weight = cell.output.weight
        network.save(tmp_path)
        assert "head.weight" not in load_file(tmp_path / "model.safetensors")
        loaded = MemoryNetwork.load(tmp_path)
        assert loaded.head.weight is loaded.cell.output.weight
        torch.testing.assert_close(loaded(start(), 3), network(start(), 3))

    def test_inside_a_cell(self, tmp_path: Path) -> None:
        network = MemoryNetwork(Tied())
        network.save(tmp_path)
        loaded = MemoryNetwork.load(tmp_path, cell=Tied())
        assert loaded.cell.first.weight is loaded.cell.second.weight
        torch.testing.assert_close(loaded(start(), 3), network(start(), 3))

    def test_views_of_one_storage(self, tmp_path: Path) -> None:
        cell, both = Mean(), torch.randn(2, D, D)
        network = MemoryNetwork(cell, nn.Linear(D, D))
        cell.layer.weight, network.head.weight = (nn.Parameter(half) for half in both)
        network.save(tmp_path)
        loaded = MemoryNetwork.load(tmp_path, cell=Mean())
        torch.testing.assert_close(loaded(start(), 3), network(start(), 3))


class TestDamage:
    @pytest.fixture
    def run(self, tmp_path: Path) -> Path:
        MemoryNetwork(AttentionCell(D, heads=2)).save(tmp_path)
        return tmp_path

    @pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
    def test_a_missing_file(self, name: str, run: Path) -> None:
        (run / name).unlink()
        with pytest.raises(FileNotFoundError, match=name):
            MemoryNetwork.load(run)

    @pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
    def test_half_a_file(self, name: str, run: Path) -> None:
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(ValueError, match=f"{name} is damaged"):
            MemoryNetwork.load(run)

    def test_a_foreign_config(self, run: Path) -> None:
        (run / "config.json").write_text('{"model_type": "bert"}')
        with pytest.raises(ValueError, match="does not describe a network"):
            MemoryNetwork.load(run)

    def test_a_newer_format(self, run: Path) -> None:
        config = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps(config | {"format_version": 99}))
        with pytest.raises(ValueError, match="upgrade memmodel"):
            MemoryNetwork.load(run)

    def test_files_of_different_saves(self, run: Path, tmp_path: Path) -> None:
        # Same weights' shapes, but other heads: only the digest tells.
        MemoryNetwork(AttentionCell(D, heads=1)).save(tmp_path / "other")
        (tmp_path / "other" / "config.json").replace(run / "config.json")
        with pytest.raises(ValueError, match="not saved with its"):
            MemoryNetwork.load(run)

    def test_a_failed_save_leaves_the_old_one(
        self, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = {path.name: path.read_bytes() for path in run.iterdir()}

        def full(*_: object, **__: object) -> None:
            raise OSError("No space left on device")

        monkeypatch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space"):
            MemoryNetwork(AttentionCell(D)).save(run)
        assert {path.name: path.read_bytes() for path in run.iterdir()} == before
