import subprocess
import sys

import numpy as np
import pytest
from hand_made import save_step

from memmodel.serve import run_batch

# In a process of its own: Ray installs signal handlers and warns about the interpreter it is in.
PROGRAM = """
import sys
import ray
from memmodel.serve import run_batch
ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)
run_batch(sys.argv[1], sys.argv[2], sys.argv[3], steps=4, batch=16, engine="ray")
try:
    run_batch(sys.argv[1], sys.argv[2], sys.argv[3], steps=4, engine="ray", force=True, strict=True)
except ValueError as error:
    print(error)
"""


def test_a_cluster_gives_the_same_bytes(tmp_path, monkeypatch):
    model = save_step(tmp_path / "step.onnx", takes_inputs=False, width=16)
    start = np.random.default_rng(0).standard_normal((500, 3, 16)).astype(np.float32)
    start[17, 0, 0] = np.nan
    np.savez(tmp_path / "in.npz", start=start)
    run_batch(model, tmp_path / "in.npz", tmp_path / "here.npz", steps=4, batch=16)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, model, tmp_path / "in.npz", tmp_path / "ray.npz"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "row 17" in done.stdout
    assert "start holds a NaN" in done.stdout
    assert (tmp_path / "ray.npz").read_bytes() == (tmp_path / "here.npz").read_bytes()


def test_a_missing_extra_names_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    model = save_step(tmp_path / "step.onnx", takes_inputs=False)
    np.save(tmp_path / "in.npy", np.ones((2, 1, 3), np.float32))
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'memmodel\[ray\]'"):
        run_batch(model, tmp_path / "in.npy", tmp_path / "out.npy", steps=1, engine="ray")
