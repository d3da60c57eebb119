"""What only TorchScript and .pt2 have: C++ programs, native packages, fixed steps, no other ops."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.utils.cpp_extension
from torch import nn

import memmodel
from memmodel.export import ExportError, read_metadata, to_pt2, to_torchscript

# torch.jit is deprecated; so the docs of to_torchscript say.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.load:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.load:FutureWarning"),
]
HERE = Path(__file__).parent
COMPILER = shutil.which("g++") or shutil.which("clang++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")


class PythonOp(nn.Module):
    """Uses an op that exists only where its Python library is imported."""

    def forward(self, prefix):
        index = torch.zeros((), dtype=torch.int64)
        return memmodel.slot_write(prefix, prefix[:, -1:], index)[:, 0]


class TestTorchScript:
    @needs_compiler
    def test_a_libtorch_program_runs_it(self, tmp_path, network):
        to_torchscript(network, tmp_path / "model.pt")
        libraries = torch.utils.cpp_extension.library_paths()[0]
        build = [
            COMPILER,
            "-std=c++20",
            "-O0",
            str(HERE / "rollout.cpp"),
            "-o",
            str(tmp_path / "r"),
        ]
        build += [f"-I{path}" for path in torch.utils.cpp_extension.include_paths()]
        build += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
        build += [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-ltorch", "-ltorch_cpu", "-lc10"]
        subprocess.run(build, check=True, capture_output=True, text=True)
        sizes = ["3", "2", "8", "5"]
        run = subprocess.run(
            [tmp_path / "r", tmp_path / "model.pt", *sizes],
            check=True,
            capture_output=True,
            text=True,
        )
        start = torch.arange(48, dtype=torch.float32).reshape(3, 2, 8) / 100
        with torch.no_grad():
            expected = memmodel.rollout(network.cell.eval(), start, 5)
        got = torch.tensor([float(line) for line in run.stdout.split()]).reshape(3, 7, 8)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)

    def test_python_ops_are_refused(self, tmp_path):
        network = memmodel.MemoryNetwork(PythonOp())
        with pytest.raises(ExportError, match="memmodel::slot_write"):
            to_torchscript(network, tmp_path / "m.pt", start=torch.randn(2, 3, 4))

    def test_an_unscriptable_cell_is_traced(self, tmp_path):
        class Lambda(nn.Module):
            def forward(self, prefix):
                return (lambda mean: torch.tanh(mean))(prefix.mean(1))

        network = memmodel.MemoryNetwork(Lambda())
        report = to_torchscript(network, tmp_path / "m.pt", start=torch.randn(2, 3, 4))
        assert report.metadata.parity.max_abs_error < 1e-6

    def test_records_no_gradients(self, tmp_path, network):
        to_torchscript(network, tmp_path / "m.pt")
        memory, output = torch.jit.load(tmp_path / "m.pt")(torch.randn(1, 2, 8), 3)
        assert not memory.requires_grad
        assert not output.requires_grad


class TestPt2:
    def test_fixed_steps_are_named_everywhere(self, tmp_path, network):
        report = to_pt2(network, tmp_path / "m.pt2", steps=6)
        assert report.metadata.fixed == {"steps": 6}
        assert "fixed at export: steps = 6" in str(report)
        assert [spec.name for spec in report.metadata.inputs] == ["start"]
        start = torch.randn(5, 3, 8)
        memory, _ = torch.export.load(tmp_path / "m.pt2").module()(start)
        with torch.no_grad():
            expected = memmodel.rollout(network.cell.eval(), start, 6)
        torch.testing.assert_close(memory, expected, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("input_dim", [None, 2])
    @pytest.mark.parametrize("steps", [0, 1])
    def test_few_steps(self, tmp_path, input_dim, steps):
        """Sizes that torch.export likes to rule out; with and without inputs it sees others."""
        cell = memmodel.AttentionCell(8, input_dim=input_dim)
        to_pt2(memmodel.MemoryNetwork(cell, nn.Linear(8, 2)), tmp_path / "m.pt2")
        start = torch.randn(1, 1, 8)
        given = () if input_dim is None else (torch.randn(1, steps, input_dim),)
        module = torch.export.load(tmp_path / "m.pt2").module()
        memory, output = module(start, torch.tensor(steps), *given)
        assert torch.equal(memory[:, :1], start)
        assert memory.shape == (1, 1 + steps, 8)
        assert output.shape == (1, steps, 2)

    def test_python_ops_are_refused(self, tmp_path):
        network = memmodel.MemoryNetwork(PythonOp())
        with pytest.raises(ExportError, match="slot_write"):
            to_pt2(network, tmp_path / "m.pt2", form="step", start=torch.randn(2, 3, 4))

    def test_bad_steps(self, tmp_path, network):
        path = tmp_path / "m.pt2"
        with pytest.raises(ValueError, match="steps must be None in the step form"):
            to_pt2(network, path, form="step", steps=3)
        with pytest.raises(ValueError, match="steps must be None or at least 1, got 0"):
            to_pt2(network, path, steps=0)
        with pytest.raises(ValueError, match="steps must be given for an AOTInductor rollout"):
            to_pt2(network, path, aot=True)


class TestInPlace:
    """A write costs the same whatever the size of the memory; a copy would not."""

    @pytest.mark.parametrize("write", [to_torchscript, to_pt2])
    def test_no_step_allocates_the_memory_again(self, tmp_path, write):
        class Newest(nn.Module):
            def forward(self, prefix):
                return prefix[:, -1] * 0.5

        network = memmodel.MemoryNetwork(Newest())
        path = tmp_path / ("m.pt" if write is to_torchscript else "m.pt2")
        write(network, path, start=torch.randn(4, 3, 16))
        if write is to_torchscript:
            module, steps = torch.jit.load(path), 20
        else:
            module, steps = torch.export.load(path).module(), torch.tensor(20)
        start = torch.randn(1, 5000, 16)
        with torch.profiler.profile(profile_memory=True) as profile, torch.no_grad():
            module(start, steps)
        allocated = sum(max(event.self_cpu_memory_usage, 0) for event in profile.events())
        assert allocated < 3 * start.numel() * 4


@needs_compiler
def test_aot_package(tmp_path, network):
    """Compiles once (half a minute or more), runs without memmodel at other sizes."""
    report = to_pt2(network, tmp_path / "m.pt2", aot=True, steps=2)
    assert report.compile_seconds is not None
    assert report.compile_seconds < report.seconds
    metadata = read_metadata(tmp_path / "m.pt2")
    assert (metadata.format, metadata.device, metadata.fixed) == ("aoti", "cpu", {"steps": 2})
    start = torch.randn(4, 7, 8)
    np.savez(tmp_path / "job.npz", start=start.numpy(), steps=2)
    jobs = [["job", "m.pt2", "aoti", "rollout", None, False]]
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, "-I", str(HERE / "standalone.py"), str(tmp_path)]
    subprocess.run(command, check=True, timeout=120)
    got = np.load(tmp_path / "job.result.npz")
    with torch.no_grad():
        expected = memmodel.rollout(network.cell.eval(), start, 2).numpy()
    np.testing.assert_allclose(got["memory"], expected, rtol=1e-4, atol=1e-5)
    assert got["output"].shape == (4, 2, 2)
