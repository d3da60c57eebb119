"""Runs artifacts where neither memmodel nor, for ONNX files, torch can be imported.

Usage: python -I standalone.py DIR. DIR/jobs.json lists [name, format, form, state, free_steps];
``name.npz`` holds start, steps and inputs; ``name.result.npz`` is written.
"""

import json
import sys
from pathlib import Path

import numpy as np

BLOCKED = {"memmodel"}


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(f"{name} is blocked")


def onnx_calls(path):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return lambda **feeds: dict(zip(names, session.run(names, feeds), strict=True))


def torch_calls(path, kind, form):
    import torch

    if kind == "torchscript":
        run = torch.jit.load(path)
    elif kind == "aoti":
        run = torch._inductor.aoti_load_package(str(path))
    else:
        run = torch.export.load(path).module()
    names = ["memory", "output"] if form == "rollout" else ["slot", "output"]

    def call(**feeds):
        def argument(name, value):
            if name == "steps":
                return int(value) if kind == "torchscript" else torch.tensor(int(value))
            return torch.from_numpy(np.ascontiguousarray(value))

        result = run(*(argument(*item) for item in feeds.items()))
        results = (result,) if isinstance(result, torch.Tensor) else result
        return {name: t.numpy() for name, t in zip(names, results, strict=False)}

    return call


def by_steps(call, state, start, steps, inputs):
    """The loop a user of the step form writes."""
    batch, k0 = start.shape[:2]
    memory = np.zeros((batch, k0 + steps + 2, *start.shape[2:]), start.dtype)
    memory[:, :k0] = start
    outputs = []
    for i in range(steps):
        given = {} if inputs is None else {"input": np.ascontiguousarray(inputs[:, i])}
        if state == "prefix":
            made = call(prefix=np.ascontiguousarray(memory[:, : k0 + i]), **given)
            memory[:, k0 + i] = made["slot"]
        else:
            made = call(memory=memory, length=np.full(batch, k0 + i), **given)
            memory = made["memory_out"]
        outputs.append(made.get("output"))
    result = {"memory": memory[:, : k0 + steps]}
    if outputs[0] is not None:
        result["output"] = np.stack(outputs, 1)
    return result


def main(directory):
    jobs = json.loads((directory / "jobs.json").read_text())
    for name, file, kind, form, state, free_steps in sorted(jobs, key=lambda job: job[2] != "onnx"):
        if kind != "onnx":
            BLOCKED.discard("torch")
        call = (
            onnx_calls(directory / file)
            if kind == "onnx"
            else torch_calls(directory / file, kind, form)
        )
        data = np.load(directory / f"{name}.npz")
        start, steps = data["start"], int(data["steps"])
        inputs = data.get("inputs")
        if form == "step":
            result = by_steps(call, state, start, steps, inputs)
        else:
            given = {} if inputs is None else {"inputs": inputs}
            timing = {"steps": np.array(steps)} if free_steps else {}
            result = call(start=start, **timing, **given)
        np.savez(directory / f"{name}.result.npz", **result)
    assert "memmodel" not in sys.modules


if __name__ == "__main__":
    BLOCKED.add("torch")
    sys.meta_path.insert(0, Blocker())
    main(Path(sys.argv[1]))
