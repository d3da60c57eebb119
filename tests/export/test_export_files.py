"""Files on disk: atomic, never replaced by accident, legible, and clear about what is wrong."""

import json
import os
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import memmodel
from memmodel.export import (
    ArtifactError,
    ParityError,
    parity,
    read_metadata,
    to_onnx,
    to_pt2,
    to_torchscript,
)
from memmodel.export.metadata import EXTRA_FILE, ONNX_KEY, Metadata

WRITERS = {".onnx": to_onnx, ".pt": to_torchscript, ".pt2": to_pt2}
suffixes = pytest.mark.parametrize("suffix", WRITERS)


@pytest.fixture(params=WRITERS)
def artifact(request, tmp_path, network):
    path = tmp_path / f"model{request.param}"
    WRITERS[request.param](network, path, form="step")
    return path


class TestWriting:
    @suffixes
    def test_an_existing_file_is_kept_unless_forced(self, tmp_path, network, suffix):
        path = tmp_path / f"läuft schon 模型{suffix}"
        path.write_bytes(b"old")
        with pytest.raises(FileExistsError, match="force=True"):
            WRITERS[suffix](network, path, form="step")
        assert path.read_bytes() == b"old"
        report = WRITERS[suffix](network, path, form="step", force=True)
        assert report.files == {path.name: path.stat().st_size}
        assert os.listdir(tmp_path) == [path.name]
        assert read_metadata(path).form == "step"

    @suffixes
    def test_a_difference_from_eager_deletes_the_file(self, tmp_path, network, suffix, monkeypatch):
        monkeypatch.setitem(parity._TOLERANCE, torch.float32, -1.0)
        path = tmp_path / f"m{suffix}"
        path.write_bytes(b"old")
        with pytest.raises(ParityError, match=r"memory differs from eager at Case\(batch=1"):
            WRITERS[suffix](network, path, form="step", force=True)
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {path.name: b"old"}

    def test_a_cell_that_tracing_would_fix_is_caught(self, tmp_path):
        class Fixed(nn.Module):
            """TorchScript knows no lambda; tracing turns the prefix length into a constant."""

            def forward(self, prefix):
                return (lambda count: prefix[:, -1] / count)(int(prefix.shape[1]))

        network = memmodel.MemoryNetwork(Fixed())
        with pytest.raises(ParityError, match="memory differs from eager"):
            to_torchscript(network, tmp_path / "m.pt", start=torch.randn(3, 4, 2))
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("write", WRITERS.values())
    def test_bad_arguments(self, tmp_path, network, write):
        with pytest.raises(ValueError, match="path must end with"):
            write(network, tmp_path / "model.bin")
        suffix = next(s for s, w in WRITERS.items() if w is write)
        path = tmp_path / f"m{suffix}"
        with pytest.raises(ValueError, match="form must be 'rollout' or 'step', got 'loop'"):
            write(network, path, form="loop")
        with pytest.raises(FileNotFoundError, match="does not exist"):
            write(network, tmp_path / "nowhere" / f"m{suffix}")
        with pytest.raises(TypeError, match="network must be a MemoryNetwork"):
            write(nn.Linear(2, 2), path)
        with pytest.raises(ValueError, match="start must be given"):
            write(memmodel.MemoryNetwork(nn.Identity()), path)
        assert os.listdir(tmp_path) == []

    def test_killed_in_the_self_check_leaves_the_old_file(self, tmp_path, network):
        path = tmp_path / "m.pt"
        to_torchscript(network, path)
        old = path.read_bytes()
        script = f"""
import os, signal, torch, memmodel
from memmodel.export import torchscript_format
torchscript_format.compare = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
network = memmodel.MemoryNetwork(memmodel.AttentionCell(8))
memmodel.export.to_torchscript(network, {str(path)!r}, force=True)
"""
        run = subprocess.run([sys.executable, "-c", script], check=False)
        assert run.returncode == -signal.SIGKILL
        assert path.read_bytes() == old
        assert read_metadata(path).parity is not None


class TestNetworkAfterwards:
    @suffixes
    def test_modes_buffers_flags_and_random_numbers_are_as_before(self, tmp_path, suffix):
        class Noisy(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.BatchNorm1d(4)
                self.drop = nn.Dropout(0.5)

            def forward(self, prefix):
                return self.drop(self.norm(prefix.mean(1)))

        network = memmodel.MemoryNetwork(Noisy())
        network.cell.norm.eval()
        network.cell.norm.bias.requires_grad_(False)
        before = {name: value.clone() for name, value in network.state_dict().items()}
        modes = [module.training for module in network.modules()]
        flags = [parameter.requires_grad for parameter in network.parameters()]
        start = torch.randn(4, 3, 4)
        random = torch.get_rng_state()
        WRITERS[suffix](network, tmp_path / f"m{suffix}", start=start)
        assert [module.training for module in network.modules()] == modes
        assert [parameter.requires_grad for parameter in network.parameters()] == flags
        assert torch.equal(torch.get_rng_state(), random)
        for name, value in network.state_dict().items():
            assert torch.equal(value, before[name]), name


class TestReport:
    def test_holds_sizes_errors_and_versions(self, tmp_path, network):
        report = to_onnx(network, tmp_path / "m.onnx", opset=20)
        document = json.loads(report.to_json())
        assert document["files"] == {"m.onnx": (tmp_path / "m.onnx").stat().st_size}
        assert document["metadata"]["opset"] == 20
        assert document["metadata"]["versions"]["torch"] == torch.__version__
        assert 0 <= document["metadata"]["parity"]["max_abs_error"] < 1e-5
        assert "largest difference from eager" in str(report)


class TestReading:
    def test_metadata_survives_the_file(self, artifact):
        metadata = read_metadata(artifact)
        assert Metadata.from_json(metadata.to_json(), artifact) == metadata
        assert metadata.versions["memmodel"] == memmodel.__version__

    @pytest.mark.parametrize("keep", [0.02, 0.5, 0.95])
    def test_truncated(self, artifact, keep):
        content = artifact.read_bytes()
        artifact.write_bytes(content[: int(len(content) * keep)])
        with pytest.raises(ArtifactError, match="truncated"):
            read_metadata(artifact)

    def test_newer(self, artifact):
        document = replace(read_metadata(artifact), format_version=99).to_json()
        if artifact.suffix == ".onnx":
            model = onnx.load(artifact)
            onnx.helper.set_model_props(model, {ONNX_KEY: document})
            onnx.save(model, artifact)
        else:
            with zipfile.ZipFile(artifact, "w") as archive:
                archive.writestr(f"model/extra/{EXTRA_FILE}", document)
        with pytest.raises(ArtifactError, match=r"format version 99.*upgrade memmodel"):
            read_metadata(artifact)

    def test_foreign(self, tmp_path):
        files = {"empty": b"", "text.onnx": b"hello, world", "noise.pt": os.urandom(500)}
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
            with pytest.raises(ArtifactError):
                read_metadata(tmp_path / name)
        np.savez(tmp_path / "a.npz", x=np.zeros(3))
        with pytest.raises(ArtifactError, match=r"not written by memmodel\.export"):
            read_metadata(tmp_path / "a.npz")
        node = onnx.helper.make_node("Identity", ["x"], ["y"])
        value = onnx.helper.make_tensor_value_info
        graph = onnx.helper.make_graph([node], "g", [value("x", 1, [1])], [value("y", 1, [1])])
        onnx.save(onnx.helper.make_model(graph), tmp_path / "other.onnx")
        with pytest.raises(ArtifactError, match=r"not written by memmodel\.export"):
            read_metadata(tmp_path / "other.onnx")
        with pytest.raises(ArtifactError, match="is a directory"):
            read_metadata(tmp_path)
        with pytest.raises(FileNotFoundError):
            read_metadata(tmp_path / "none.onnx")

    def test_damaged_document(self):
        with pytest.raises(ArtifactError, match="metadata is damaged"):
            Metadata.from_json("{", "m.onnx")
        with pytest.raises(ArtifactError, match="metadata is damaged"):
            Metadata.from_json('{"format_version": 1}', "m.onnx")

    def test_needs_no_torch(self, artifact):
        script = (
            "import sys, memmodel.export as export; "
            f"export.read_metadata({str(artifact)!r}); assert 'torch' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", script], check=True)

    def test_names_that_are_no_text(self, tmp_path):
        path = tmp_path / "m.pt"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model/ü/data.pkl", b"")
        content = path.read_bytes()
        path.write_bytes(content.replace("ü".encode(), b"\xff\xff"))
        with pytest.raises(ArtifactError, match="damaged"):
            read_metadata(path)

    @pytest.mark.parametrize("change", [{"format": "tflite"}, {"form": "loop"}])
    def test_unknown_format_or_form(self, artifact, change):
        document = replace(read_metadata(artifact), **change).to_json()
        with pytest.raises(ArtifactError, match=f"damaged.*{next(iter(change.values()))}"):
            Metadata.from_json(document, artifact)
