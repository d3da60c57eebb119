"""The repository is checked against Triton's own protobuf, its graph by playing Triton."""

import numpy as np
import onnxruntime as ort
import pytest
import torch
from google.protobuf import text_format
from torch import nn
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from memmodel import AttentionCell, MemoryNetwork, RecurrentCell
from memmodel.serve.triton import write_repository

CAPACITY = 12


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    torch.manual_seed(0)
    network = MemoryNetwork(AttentionCell(8, heads=2, input_dim=3), nn.Linear(8, 2)).eval()
    directory = tmp_path_factory.mktemp("triton") / "models"
    return network, write_repository(network, directory, capacity=CAPACITY)


def parse(model):
    return text_format.Parse((model / "config.pbtxt").read_text(), ModelConfig())


def test_the_config_is_one_that_triton_reads(repository):
    _, model = repository
    config = parse(model)
    assert (config.name, config.backend, config.max_batch_size) == ("memmodel", "onnxruntime", 1)
    assert {t.name: list(t.dims) for t in config.input} == {
        "given": [8],
        "use_given": [1],
        "input": [3],
    }
    assert {t.name: list(t.dims) for t in config.output} == {"slot": [8], "output": [2]}
    states = config.sequence_batching.state
    assert [s.input_name for s in states] == sorted(s.input_name for s in states)
    assert [s.output_name for s in states] == sorted(s.output_name for s in states)
    for state in states:
        assert state.use_same_buffer_for_input_output == (state.input_name == "memory")
        assert state.initial_state[0].zero_data
        assert list(state.dims) == list(state.initial_state[0].dims)


def test_every_tensor_of_the_graph_is_in_the_config(repository):
    _, model = repository
    config = parse(model)
    session = ort.InferenceSession(model / "1" / "model.onnx", providers=["CPUExecutionProvider"])
    states = config.sequence_batching.state
    declared = {t.name: (t.data_type, list(t.dims)) for t in (*config.input, *config.output)}
    for state in states:
        declared[state.input_name] = declared[state.output_name] = (
            state.data_type,
            list(state.dims),
        )
    types = {
        "tensor(float)": DataType.TYPE_FP32,
        "tensor(int64)": DataType.TYPE_INT64,
        "tensor(bool)": DataType.TYPE_BOOL,
    }
    values = {v.name: v for v in (*session.get_inputs(), *session.get_outputs())}
    assert values.keys() == declared.keys()
    for name, (kind, dims) in declared.items():
        assert types[values[name].type] == kind
        shape = values[name].shape[1:]  # Triton leaves the batch out
        assert len(shape) == len(dims)
        assert all(isinstance(a, str) or a == b for a, b in zip(shape, dims, strict=True))


def test_a_sequence_gives_the_networks_rollout(repository):
    """Zero states, one buffer for a state's input and output, a request per slot."""
    network, model = repository
    config = parse(model)
    session = ort.InferenceSession(model / "1" / "model.onnx", providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    start = rng.standard_normal((1, 3, 8)).astype(np.float32)
    inputs = rng.standard_normal((1, CAPACITY - 3, 3)).astype(np.float32)
    dtypes = {DataType.TYPE_FP32: np.float32, DataType.TYPE_INT64: np.int64}
    states = {
        s.input_name: np.zeros((1, *s.dims), dtypes[s.data_type])
        for s in config.sequence_batching.state
    }

    def request(given, use_given, step_input):
        feeds = {"given": given, "use_given": np.array([[use_given]]), "input": step_input}
        binding = session.io_binding()
        held = feeds | states  # the arrays have to outlive the call
        for name, value in held.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(value))
        for state in config.sequence_batching.state:
            value = states[state.input_name]
            if not state.use_same_buffer_for_input_output:
                states[state.input_name] = value = np.empty_like(value)
            binding.bind_ortvalue_output(state.output_name, ort.OrtValue.ortvalue_from_numpy(value))
        binding.bind_output("slot")
        binding.bind_output("output")
        session.run_with_iobinding(binding)
        slot, output = binding.get_outputs()[len(states) :]
        return slot.numpy(), output.numpy()

    for i in range(3):
        slot, _ = request(start[:, i], True, np.zeros((1, 3), np.float32))
        np.testing.assert_array_equal(slot, start[:, i])
    nothing = np.zeros((1, 8), np.float32)
    answers = [request(nothing, False, inputs[:, i]) for i in range(CAPACITY - 3)]
    with torch.inference_mode():
        memory = MemoryNetwork(network.cell)(
            torch.from_numpy(start), CAPACITY - 3, torch.from_numpy(inputs)
        )
        output = network.head(memory[:, 3:]).numpy()
    slots = np.stack([slot for slot, _ in answers], axis=1)
    np.testing.assert_allclose(slots, memory[:, 3:].numpy(), atol=1e-5)
    heads = np.stack([head for _, head in answers], axis=1)
    np.testing.assert_allclose(heads, output, atol=1e-5)
    np.testing.assert_allclose(states["memory"], memory.numpy(), atol=1e-5)
    assert states["length"] == CAPACITY


def test_what_cannot_be_written(repository, tmp_path):
    network, model = repository
    with pytest.raises(FileExistsError, match="pass force=True"):
        write_repository(network, model.parent)
    with pytest.raises(ValueError, match="capacity must be at least 2, got 1"):
        write_repository(network, tmp_path, capacity=1)
    recurrent = MemoryNetwork(RecurrentCell(nn.RNN(4, 4)))
    with pytest.raises(ValueError, match="needs a cell that takes a mask"):
        write_repository(recurrent, tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_model_is_replaced_as_a_whole(tmp_path):
    network = MemoryNetwork(AttentionCell(4))
    model = write_repository(network, tmp_path, capacity=8)
    write_repository(network, tmp_path, capacity=9, force=True)
    assert "dims: [9, 4]" in (model / "config.pbtxt").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["memmodel"]
