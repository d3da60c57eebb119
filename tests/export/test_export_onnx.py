"""What only ONNX has: opsets, the in-place write and its proof, external weights."""

import os

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import memmodel
from memmodel.export import AliasError, ExportError, onnx_format, read_metadata, to_onnx
from memmodel.export.alias import prove_in_place


def session(path, log_level=4):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = log_level
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class TestOpset:
    @pytest.mark.parametrize(("opset", "write"), [(18, "ScatterND"), (24, "TensorScatter")])
    def test_step_writes_with_the_opsets_operator(self, tmp_path, network, opset, write):
        to_onnx(network, tmp_path / "m.onnx", form="step", opset=opset)
        model = onnx.load(tmp_path / "m.onnx")
        onnx.checker.check_model(model, full_check=True)
        assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", opset)]
        assert not model.functions
        (maker,) = [node for node in model.graph.node if "memory_out" in node.output]
        assert maker.op_type == write
        assert maker.input[0] == "memory"

    @pytest.mark.parametrize("opset", [18, 20, 23])
    def test_rollout_of_every_opset_runs(self, tmp_path, network, opset):
        report = to_onnx(network, tmp_path / "m.onnx", opset=opset)
        assert report.metadata.opset == opset
        made = session(tmp_path / "m.onnx").run(
            None, {"start": np.zeros((2, 1, 8), np.float32), "steps": np.array(0)}
        )
        assert [value.shape for value in made] == [(2, 1, 8), (2, 0, 2)]

    @pytest.mark.parametrize("opset", [17, 25])
    def test_other_opsets_are_refused(self, tmp_path, network, opset):
        with pytest.raises(ValueError, match=f"opset must be between 18 and 24, got {opset}"):
            to_onnx(network, tmp_path / "m.onnx", opset=opset)


class TestRollout:
    def test_size_does_not_depend_on_steps_and_the_weights_are_stored_once(self, tmp_path):
        network = memmodel.MemoryNetwork(memmodel.AttentionCell(64))
        weights = sum(p.numel() * 4 for p in network.parameters())
        report = to_onnx(network, tmp_path / "m.onnx")
        assert weights < report.files["m.onnx"] < weights + 30_000
        run = session(tmp_path / "m.onnx")
        for steps in (1, 300):
            (memory,) = run.run(
                None, {"start": np.ones((1, 2, 64), np.float32), "steps": np.array(steps)}
            )
            assert memory.shape == (1, 2 + steps, 64)


class TestStepInPlace:
    @pytest.mark.parametrize("opset", [18, 24])
    def test_one_buffer_as_input_and_output(self, tmp_path, network, opset):
        """The same numbers from one buffer as from two, rows of different lengths included."""
        to_onnx(network, tmp_path / "m.onnx", form="step", opset=opset)
        run = session(tmp_path / "m.onnx")
        rng = np.random.default_rng(0)
        memory = np.zeros((3, 12, 8), np.float32)
        length = np.array([2, 5, 3])
        for row, count in enumerate(length):
            memory[row, :count] = rng.normal(size=(count, 8))
        shared, apart = onnxruntime.OrtValue.ortvalue_from_numpy(memory.copy()), memory.copy()
        binding = run.io_binding()
        binding.bind_ortvalue_input("memory", shared)
        binding.bind_ortvalue_output("memory_out", shared)
        for name in ("slot", "output"):
            binding.bind_output(name, "cpu")
        for i in range(6):
            binding.bind_ortvalue_input(
                "length", onnxruntime.OrtValue.ortvalue_from_numpy(length + i)
            )
            run.run_with_iobinding(binding)
            (apart,) = run.run(["memory_out"], {"memory": apart, "length": length + i})
        np.testing.assert_array_equal(shared.numpy(), apart)
        cell = network.cell.eval()
        for row, count in enumerate(length):
            start = torch.from_numpy(memory[row, :count])[None]
            with torch.no_grad():
                expected = memmodel.rollout(cell, start, 6)[0].numpy()
            got = apart[row, : count + 6]
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)

    def test_buffer_needs_a_cell_that_takes_a_mask(self, tmp_path):
        network = memmodel.MemoryNetwork(memmodel.RecurrentCell(nn.GRU(4, 4)))
        with pytest.raises(ValueError, match="state='buffer' needs a cell that takes a mask"):
            to_onnx(network, tmp_path / "m.onnx", form="step", state="buffer")

    def test_prefix_can_be_chosen(self, tmp_path, network):
        report = to_onnx(network, tmp_path / "m.onnx", form="step", state="prefix")
        assert [spec.name for spec in report.metadata.inputs] == ["prefix"]


def graph(*nodes):
    value = helper.make_tensor_value_info
    return helper.make_graph(
        nodes,
        "g",
        [value("memory", TensorProto.FLOAT, [2, 4]), value("index", TensorProto.INT64, [1, 1])],
        [value("memory_out", TensorProto.FLOAT, [2, 4]), value("sum", TensorProto.FLOAT, [4])],
    )


class TestAliasProof:
    read = helper.make_node("ReduceSum", ["memory"], ["new"], keepdims=0, name="read")
    write = helper.make_node("ScatterND", ["memory", "index", "new"], ["memory_out"])

    def test_readers_before_the_write_pass(self):
        prove_in_place(graph(self.read, self.write), "memory", "memory_out")

    def test_a_reader_beside_the_write_is_refused(self):
        late = helper.make_node("ReduceMax", ["memory"], ["sum"], keepdims=0, name="late")
        with pytest.raises(AliasError, match="ReduceMax node 'late' reads 'memory'"):
            prove_in_place(graph(self.read, self.write, late), "memory", "memory_out")

    def test_a_late_reader_of_a_view_is_refused(self):
        view = helper.make_node("Reshape", ["memory", "shape"], ["flat"])
        new = helper.make_node("ReduceSum", ["flat"], ["new"], keepdims=0)
        late = helper.make_node("ReduceMax", ["flat"], ["sum"], keepdims=0, name="late")
        with pytest.raises(AliasError, match="'late' reads 'flat'"):
            prove_in_place(graph(view, new, self.write, late), "memory", "memory_out")

    def test_a_late_reader_inside_a_subgraph_is_refused(self):
        body = helper.make_graph(
            [helper.make_node("ReduceMax", ["memory"], ["inner"], keepdims=0)], "b", [], []
        )
        late = helper.make_node("If", ["yes"], ["sum"], name="late", then_branch=body)
        with pytest.raises(AliasError, match="If node 'late'"):
            prove_in_place(graph(self.read, self.write, late), "memory", "memory_out")

    def test_a_write_into_a_copy_is_refused(self):
        copy = helper.make_node("Neg", ["memory"], ["copy"])
        write = helper.make_node("ScatterND", ["copy", "index", "new"], ["memory_out"])
        with pytest.raises(AliasError, match="must be ScatterND or TensorScatter of 'memory'"):
            prove_in_place(graph(self.read, copy, write), "memory", "memory_out")

    def test_a_memory_that_is_its_own_value_is_refused(self):
        write = helper.make_node("ScatterND", ["memory", "index", "memory"], ["memory_out"])
        with pytest.raises(AliasError, match="reads 'memory'"):
            prove_in_place(graph(write), "memory", "memory_out")

    def test_the_hazard_is_real(self, tmp_path):
        """The refused graph, run on one buffer, reads the new slot in place of the old memory."""
        late = helper.make_node("Sub", ["memory_out", "memory"], ["change"])
        value = helper.make_tensor_value_info
        inputs = [*graph().input, value("new", TensorProto.FLOAT, [1, 4])]
        outputs = [graph().output[0], value("change", TensorProto.FLOAT, [2, 4])]
        model = helper.make_model(
            helper.make_graph([self.write, late], "g", inputs, outputs),
            opset_imports=[helper.make_opsetid("", 18)],
            ir_version=10,
        )
        with pytest.raises(AliasError, match="Sub node"):
            prove_in_place(model.graph, "memory", "memory_out")
        onnx.save(model, tmp_path / "m.onnx")
        run = session(tmp_path / "m.onnx")
        binding = run.io_binding()
        state = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((2, 4), np.float32))
        binding.bind_ortvalue_input("memory", state)
        binding.bind_ortvalue_output("memory_out", state)
        binding.bind_cpu_input("index", np.array([[1]]))
        binding.bind_cpu_input("new", np.ones((1, 4), np.float32))
        binding.bind_output("change", "cpu")
        run.run_with_iobinding(binding)
        written, change = binding.copy_outputs_to_cpu()
        assert written[1].max() == 1.0
        assert change.max() == 0.0  # 1 with the old memory


class TestTypes:
    @pytest.mark.parametrize("form", ["rollout", "step"])
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision(self, tmp_path, network, dtype, form):
        report = to_onnx(network.to(dtype), tmp_path / "m.onnx", form=form)
        assert report.metadata.dtype == str(dtype).removeprefix("torch.")
        kind = onnx.load(tmp_path / "m.onnx").graph.input[0].type.tensor_type.elem_type
        assert (
            kind
            == {
                torch.float16: TensorProto.FLOAT16,
                torch.bfloat16: TensorProto.BFLOAT16,
            }[dtype]
        )

    def test_float64_scalars_keep_their_precision(self, tmp_path):
        class Third(nn.Module):
            def forward(self, prefix):
                return prefix[:, -1] * (1 / 3)

        start = torch.randn(4, 3, 2, dtype=torch.float64)
        report = to_onnx(memmodel.MemoryNetwork(Third()), tmp_path / "m.onnx", start=start)
        assert report.metadata.parity.max_rel_error < 1e-15

    def test_lstm_with_projection_is_refused(self, tmp_path):
        cell = memmodel.RecurrentCell(nn.LSTM(4, 8, proj_size=4))
        with pytest.raises(ExportError, match="ONNX has no LSTM with proj_size"):
            to_onnx(memmodel.MemoryNetwork(cell), tmp_path / "m.onnx")
        assert os.listdir(tmp_path) == []


class TestExternalWeights:
    @pytest.fixture
    def small_limit(self, monkeypatch):
        monkeypatch.setattr(onnx_format, "EXTERNAL_BYTES", 10_000)

    def test_large_weights_go_beside_the_model(self, tmp_path, small_limit):
        network = memmodel.MemoryNetwork(memmodel.AttentionCell(64))
        report = to_onnx(network, tmp_path / "m.onnx")
        (weights,) = set(report.files) - {"m.onnx"}
        assert report.files["m.onnx"] < 20_000
        assert report.files[weights] >= sum(p.numel() * 4 for p in network.parameters()) * 0.9
        start = torch.randn(2, 3, 64)
        (memory,) = session(tmp_path / "m.onnx").run(
            None, {"start": start.numpy(), "steps": np.array(5)}
        )
        with torch.no_grad():
            expected = memmodel.rollout(network.cell.eval(), start, 5)
        np.testing.assert_allclose(memory, expected.numpy(), rtol=1e-4, atol=1e-5)

    def test_replacing_leaves_only_the_new_weights(self, tmp_path, small_limit):
        network = memmodel.MemoryNetwork(memmodel.AttentionCell(64))
        to_onnx(network, tmp_path / "m.onnx")
        report = to_onnx(network, tmp_path / "m.onnx", force=True)
        assert set(os.listdir(tmp_path)) == set(report.files)

    def test_missing_weights_are_named(self, tmp_path, small_limit):
        network = memmodel.MemoryNetwork(memmodel.AttentionCell(64))
        report = to_onnx(network, tmp_path / "m.onnx")
        (name,) = set(report.files) - {"m.onnx"}
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:5000])
        with pytest.raises(ValueError, match="is truncated"):
            read_metadata(tmp_path / "m.onnx")
        (tmp_path / name).unlink()
        with pytest.raises(ValueError, match="which is missing"):
            read_metadata(tmp_path / "m.onnx")
