import itertools
import json
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from hand_made import expected, save_step
from service import service, wait_until
from tritonclient.utils import InferenceServerException

from memmodel.serve.http import serve_http

WIDTH = 3


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    model = save_step(tmp_path_factory.mktemp("http") / "step.onnx")
    options = ["--max-rows", "8", "--max-steps", "50", "--max-mb", "1"]
    with service(model, *options) as (process, port, grpc_port):
        yield process, port, grpc_port


def arguments(rng, batch=2, k0=2, steps=4):
    start = rng.standard_normal((batch, k0, WIDTH)).astype(np.float32)
    return start, steps, rng.standard_normal((batch, steps, WIDTH)).astype(np.float32)


def tensors(module, start, steps, inputs, binary=True):
    values = [("start", start, "FP32"), ("steps", np.array([steps]), "INT64")]
    values.append(("inputs", inputs, "FP32"))
    made = []
    for name, value, kind in values:
        tensor = module.InferInput(name, list(value.shape), kind)
        if module is triton_http:
            tensor.set_data_from_numpy(value, binary_data=binary)
        else:
            tensor.set_data_from_numpy(value)
        made.append(tensor)
    return made


@pytest.mark.parametrize("module", [triton_http, triton_grpc])
def test_tritonclient_gets_health_metadata_and_answers(served, module):
    _, port, grpc_port = served
    address = f"127.0.0.1:{port if module is triton_http else grpc_port}"
    start, steps, inputs = arguments(np.random.default_rng(0))
    with module.InferenceServerClient(address) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("net")
        metadata = client.get_model_metadata("net")
        named = metadata["inputs"] if module is triton_http else metadata.inputs
        names = [t["name"] if module is triton_http else t.name for t in named]
        assert names == ["start", "steps", "inputs"]
        answer = client.infer("net", tensors(module, start, steps, inputs), request_id="seven")
    memory = expected(start, steps, inputs)
    np.testing.assert_allclose(answer.as_numpy("memory"), memory, atol=1e-5)
    np.testing.assert_allclose(answer.as_numpy("output"), 2 * memory[:, 2:], atol=1e-5)
    response = answer.get_response()
    assert (response["id"] if module is triton_http else response.id) == "seven"


@pytest.mark.parametrize("module", [triton_http, triton_grpc])
def test_many_clients_get_their_own_answers(served, module):
    """64 clients at once, of four shapes and with one bad request in eight."""
    _, port, grpc_port = served
    address = f"127.0.0.1:{port if module is triton_http else grpc_port}"
    requests = 4

    def client(number):
        rng = np.random.default_rng(number)
        wrong = []
        with module.InferenceServerClient(address) as connection:
            for i in range(requests):
                start, steps, inputs = arguments(rng, 1 + number % 3, 1 + i % 2, 3 + number % 2)
                if (number + i) % 8 == 0:
                    with pytest.raises(InferenceServerException, match="inputs must have shape"):
                        connection.infer("net", tensors(module, start, steps + 1, inputs))
                    continue
                answer = connection.infer("net", tensors(module, start, steps, inputs))
                memory = expected(start, steps, inputs)
                if not np.allclose(answer.as_numpy("memory"), memory, atol=1e-5):
                    wrong.append((number, i))
        return wrong

    with ThreadPoolExecutor(64) as pool:
        assert [*itertools.chain(*pool.map(client, range(64)))] == []


def post(port, body, headers=None, path="/v2/models/net/infer"):
    """Status and body of a raw request."""
    headers = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def body(**changes):
    """A JSON request; ``changes`` replace fields of the tensor of that name."""
    rng = np.random.default_rng(0)
    start, steps, inputs = arguments(rng)
    made = [
        {"name": "start", "datatype": "FP32", "shape": [2, 2, 3], "data": start.ravel().tolist()},
        {"name": "steps", "datatype": "INT64", "shape": [1], "data": [steps]},
        {"name": "inputs", "datatype": "FP32", "shape": [2, 4, 3], "data": inputs.ravel().tolist()},
    ]
    return {"inputs": [{**tensor, **changes.get(tensor["name"], {})} for tensor in made]}


def test_plain_json_without_an_id_works(served):
    status, answer = post(served[1], json.dumps(body()).encode())
    assert status == 200
    memory = next(o for o in answer["outputs"] if o["name"] == "memory")
    start, steps, inputs = arguments(np.random.default_rng(0))
    got = np.array(memory["data"]).reshape(memory["shape"])
    np.testing.assert_allclose(got, expected(start, steps, inputs), atol=1e-5)


MALFORMED = {
    "not JSON": (b"{", "422"),
    "no inputs": (b"{}", "422"),
    "empty inputs": (b'{"inputs": []}', "input 'start' is missing"),
    "wrong name": (body(start={"name": "begin"}), "inputs must be"),
    "named twice": (body(inputs={"name": "start"}), "each once"),
    "wrong dtype": (body(start={"datatype": "FP64"}), "'start' must be FP32, got FP64"),
    "unknown dtype": (body(start={"datatype": "COMPLEX"}), "'start' must be FP32, got COMPLEX"),
    "text": (body(start={"data": ["a"] * 12}), "could not convert string"),
    "shape and data differ": (body(start={"shape": [2, 3, 3]}), "cannot reshape"),
    "negative shape": (body(start={"shape": [2, -1, 3]}), "'start' must have a shape"),
    "huge shape": (body(start={"shape": [10**12, 10**12, 3]}), ""),
    "wrong rank": (body(start={"shape": [3, 4]}), "start must have shape"),
    "wrong slot": (body(start={"shape": [2, 3, 2]}), "start must have shape"),
    "too many rows": (body(start={"shape": [12, 1, 1]}), "12 rows, allowed are 8"),
    "steps as text": (
        body(steps={"datatype": "BYTES", "data": ["4"]}),
        "'steps' must be one INT64",
    ),
    "negative steps": (body(steps={"data": [-1]}), "'steps' must lie in 1..50"),
    "huge steps": (body(steps={"data": [10**9]}), "'steps' must lie in 1..50"),
    "other steps": (body(steps={"data": [5]}), "inputs must have shape"),
    "NULL": (body(start={"data": None}), ""),
    "unknown output": ({**body(), "outputs": [{"name": "slots"}]}, "output 'slots' is none of"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_requests_get_a_reason(served, name):
    content, reason = MALFORMED[name]
    status, answer = post(
        served[1], content if isinstance(content, bytes) else json.dumps(content).encode()
    )
    assert 400 <= status < 500, answer
    assert reason in f"{status} {answer}"
    assert post(served[1], json.dumps(body()).encode())[0] == 200


@pytest.mark.parametrize("length", ["abc", "-5", "999999", "3", None])
def test_truncated_binary_bodies_get_a_reason(served, length):
    header = {"inputs": [{"name": "start", "datatype": "FP32", "shape": [2, 2, 3]}]}
    header["inputs"][0]["parameters"] = {"binary_data_size": 48}
    content = json.dumps(header).encode()
    headers = {"Content-Type": "application/octet-stream"}
    headers["Inference-Header-Content-Length"] = length or str(len(content))
    status, answer = post(served[1], content + b"\0" * 7, headers)
    assert 400 <= status < 500, answer
    assert answer
    assert post(served[1], json.dumps(body()).encode())[0] == 200


def test_status_codes_of_limits_and_routes(served):
    _, port, grpc_port = served
    assert post(port, b" " * (2 << 20))[0] == 413
    assert post(port, json.dumps(body()).encode(), path="/v2/models/other/infer")[0] == 404
    assert post(port, b"", path="/v2/repository/models/net/unload")[0] == 404
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{grpc_port}") as client:
        start, steps, inputs = arguments(np.random.default_rng(0), batch=9)
        with pytest.raises(InferenceServerException, match="9 rows, allowed are 8") as caught:
            client.infer("net", tensors(triton_grpc, start, steps, inputs))
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
        with pytest.raises(InferenceServerException, match="UNIMPLEMENTED"):
            client.unload_model("net")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as metrics:
        assert b"memmodel_batch_rows_bucket" in metrics.read()


def metrics(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return answer.read()


def test_a_full_queue_says_try_again_and_a_signal_drains(tmp_path):
    model = save_step(tmp_path / "step.onnx", takes_inputs=False)
    options = ["--max-queue", "4", "--max-batch", "1", "--max-steps", "100000"]
    with service(model, *options) as (process, port, grpc_port):
        start = {"name": "start", "datatype": "FP32", "shape": [1, 1, 3], "data": [0.1, 0.2, 0.3]}
        slow = json.dumps({"inputs": [start], "parameters": {"steps": 6000}}).encode()
        statuses = []

        def client():
            statuses.append(post(port, slow)[0])

        threads = [threading.Thread(target=client) for _ in range(16)]
        for thread in threads:
            thread.start()
        wait_until(lambda: 429 in statuses)
        began = time.monotonic()
        empty = np.zeros((1, 1, 3), np.float32)
        request = tensors(triton_grpc, empty, 1, empty)[:2]
        late = triton_grpc.InferenceServerClient(f"127.0.0.1:{grpc_port}")
        assert late.is_server_live()
        process.send_signal(signal.SIGTERM)
        with pytest.raises(InferenceServerException, match="shutting down") as caught:
            late.infer("net", request)
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
        for thread in threads:
            thread.join()
        assert process.wait(30) == 0
        assert time.monotonic() - began < 30
    assert set(statuses) == {200, 429}
    assert 4 <= statuses.count(200) <= 5


def test_what_is_not_done_within_the_grace_period_is_answered_and_given_up(tmp_path):
    model = save_step(tmp_path / "step.onnx", takes_inputs=False)
    with service(model, "--grace", "1") as (process, port, _):
        start = {"name": "start", "datatype": "FP32", "shape": [1, 1, 3], "data": [0.1, 0.2, 0.3]}
        slow = json.dumps({"inputs": [start], "parameters": {"steps": 100_000}}).encode()
        answers = []
        client = threading.Thread(target=lambda: answers.append(post(port, slow)))
        client.start()
        wait_until(lambda: b"memmodel_queued_rows 0.0" in metrics(port))
        time.sleep(0.3)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        client.join()
        assert process.wait(10) == 1
        assert time.monotonic() - began < 6
        assert process.stderr.read().count("gave up requests not finished within 1 s") == 1
    status, answer = answers[0]
    assert status == 503
    assert "no time left" in answer["error"]


@pytest.mark.parametrize("steps", [[3.5], [True], ["two"]])
def test_steps_must_be_an_integer(served, steps):
    content = body(steps={"data": steps})
    status, answer = post(served[1], json.dumps(content).encode())
    assert status == 400
    assert "'steps' must be one INT64" in answer["error"]


def test_it_binds_to_loopback_and_says_when_a_port_is_taken(served):
    import socket
    import subprocess

    _, port, _ = served
    host = socket.gethostbyname(socket.gethostname())
    if not host.startswith("127."):
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((host, port), timeout=5)
    arguments = ["serve", "http", "missing.onnx", "--port", str(port)]
    done = subprocess.run(
        [sys.executable, "-m", "memmodel", *arguments], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_answers_are_sent_at_once():
    """Without this option the last part of a small answer waits for an acknowledgement."""
    import socket

    from memmodel.serve.http.listener import listen

    with (
        listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_missing_extra_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "kserve", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'memmodel\[http\]'"):
        serve_http(None, "net")
