import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hand_made import expected, save_step
from safetensors.numpy import load_file, save_file

from memmodel.serve import Runner, run_batch
from memmodel.serve.batch import plan
from memmodel.serve.batch.reading import open_reader

STEPS, WIDTH = 4, 3


@pytest.fixture
def runner(tmp_path):
    return Runner.load(save_step(tmp_path / "step.onnx"), "cpu")


def rows(count=23, k0=2, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "start": rng.standard_normal((count, k0, WIDTH)).astype(np.float32),
        "inputs": rng.standard_normal((count, STEPS, WIDTH)).astype(np.float32),
    }


def save(path, arrays):
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".safetensors":
        save_file(arrays, path)
    else:
        pq.write_table(pa.table({k: v.tolist() for k, v in arrays.items()}), path, row_group_size=7)
    return path


def load(path):
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return dict(arrays)
    if path.suffix == ".safetensors":
        return load_file(path)
    table = pq.read_table(path)
    return {name: np.array(table[name].to_pylist(), np.float32) for name in ("memory", "output")}


@pytest.mark.parametrize("target", [".npz", ".safetensors", ".parquet"])
@pytest.mark.parametrize("source", [".npz", ".safetensors", ".parquet"])
def test_every_format_gives_the_rows_in_order(runner, tmp_path, source, target):
    arrays = rows()
    path = save(tmp_path / f"in{source}", arrays)
    report = run_batch(runner, path, tmp_path / f"out{target}", steps=STEPS, batch=4)
    memory = expected(arrays["start"], STEPS, arrays["inputs"])
    served = load(tmp_path / f"out{target}")
    np.testing.assert_allclose(served["memory"], memory, atol=1e-5)
    np.testing.assert_allclose(served["output"], 2 * memory[:, 2:], atol=1e-5)
    assert (report.rows, report.failed, report.errors) == (23, 0, ())
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["step.onnx", path.name, f"out{target}"]
    )


def test_npy_in_and_out(tmp_path):
    runner = Runner.load(save_step(tmp_path / "step.onnx", takes_inputs=False), "cpu")
    start = rows()["start"]
    np.save(tmp_path / "in.npy", start)
    run_batch(runner, tmp_path / "in.npy", tmp_path / "out.npy", steps=STEPS)
    memory = expected(start, STEPS)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), 2 * memory[:, 2:], atol=1e-5)


def test_bad_rows_are_listed_and_the_rest_is_served(runner, tmp_path):
    arrays = rows()
    arrays["start"][5, 1, 2] = np.nan
    arrays["inputs"][11, 3, 0] = np.inf
    path = save(tmp_path / "in.npz", arrays)
    report = run_batch(runner, path, tmp_path / "out.npz", steps=STEPS, batch=4)
    good = np.setdiff1d(np.arange(23), [5, 11])
    served = load(tmp_path / "out.npz")
    memory = expected(arrays["start"][good], STEPS, arrays["inputs"][good])
    np.testing.assert_allclose(served["memory"][good], memory, atol=1e-5)
    assert np.isnan(served["memory"][[5, 11]]).all()
    assert np.isnan(served["output"][[5, 11]]).all()
    assert report.failed == 2
    lines = [json.loads(line) for line in report.errors[0].read_text().splitlines()]
    assert lines == [
        {"row": 5, "reason": "start holds a NaN or an infinity in slot 1"},
        {"row": 11, "reason": "inputs hold a NaN or an infinity at step 3"},
    ]
    with pytest.raises(ValueError, match=r"row 5 of .*start holds a NaN"):
        run_batch(runner, path, tmp_path / "strict.npz", steps=STEPS, batch=4, strict=True)
    assert not (tmp_path / "strict.npz").exists()


def ragged(path):
    """Rows of different k0, and every way in which a row can be bad."""
    rng = np.random.default_rng(1)
    starts = [rng.standard_normal((1 + i % 3, WIDTH)).tolist() for i in range(20)]
    inputs = [rng.standard_normal((STEPS, WIDTH)).tolist() for _ in range(20)]
    good = dict(enumerate(zip(starts, inputs, strict=True)))
    starts, inputs = list(starts), list(inputs)
    starts[2], starts[4], starts[6], starts[8] = None, [], [[1.0, 2.0]], [[1.0, None, 2.0]]
    inputs[10], inputs[12] = inputs[10][:-1], None
    starts[14] = [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0]]
    bad = (2, 4, 6, 8, 10, 12, 14)
    pq.write_table(pa.table({"start": starts, "inputs": inputs}), path, row_group_size=7)
    return {i: row for i, row in good.items() if i not in bad}, bad


def test_rows_of_different_lengths_come_out_in_order(runner, tmp_path):
    good, bad = ragged(tmp_path / "in.parquet")
    report = run_batch(
        runner, tmp_path / "in.parquet", tmp_path / "out.parquet", steps=STEPS, batch=2
    )
    table = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["row"] for row in table] == list(range(20))
    for i, (start, inputs) in good.items():
        memory = expected(np.array([start]), STEPS, np.array([inputs]))[0]
        np.testing.assert_allclose(np.array(table[i]["memory"]), memory, atol=1e-5)
        np.testing.assert_allclose(
            np.array(table[i]["output"]), 2 * memory[len(start) :], atol=1e-5
        )
    assert all(table[i]["memory"] is None and table[i]["output"] is None for i in bad)
    reasons = {
        e["row"]: e["reason"] for e in map(json.loads, report.errors[0].read_text().splitlines())
    }
    assert reasons == {
        2: "start is null",
        4: "start is empty, it needs at least one slot",
        6: "start has 2 numbers, which do not form slots of shape (3,)",
        8: "start holds a NaN or an infinity in slot 0",
        10: "inputs have length 3, the rollout has 4 steps",
        12: "inputs is null",
        14: "start has 6 numbers, which do not form slots of shape (3,)",
    }


def test_a_dense_output_takes_rows_of_one_length(runner, tmp_path):
    good, _ = ragged(tmp_path / "in.parquet")
    report = run_batch(runner, tmp_path / "in.parquet", tmp_path / "out.npz", steps=STEPS, batch=2)
    served = load(tmp_path / "out.npz")
    assert served["memory"].shape == (20, 1 + STEPS, WIDTH)
    fits = [i for i, (start, _) in good.items() if len(start) == 1]
    assert np.isfinite(served["memory"]).all(axis=(1, 2)).nonzero()[0].tolist() == fits
    assert "holds rows of one length only, 1" in report.errors[0].read_text()


def test_a_directory_is_served_file_by_file(runner, tmp_path):
    (tmp_path / "in").mkdir()
    sources = {f"{i}{suffix}": rows(5 + i, seed=i) for i, suffix in enumerate([".npz", ".parquet"])}
    for name, arrays in sources.items():
        save(tmp_path / "in" / name, arrays)
    report = run_batch(runner, tmp_path / "in", tmp_path / "out", steps=STEPS)
    assert report.rows == 11
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(sources)
    for name, arrays in sources.items():
        memory = expected(arrays["start"], STEPS, arrays["inputs"])
        np.testing.assert_allclose(load(tmp_path / "out" / name)["memory"], memory, atol=1e-5)
    with pytest.raises(FileExistsError, match="pass force=True"):
        run_batch(runner, tmp_path / "in", tmp_path / "out", steps=STEPS)
    run_batch(runner, tmp_path / "in", tmp_path / "out", steps=STEPS, force=True)


@pytest.mark.parametrize(("free", "expected"), [(1, 1), (8 * 100 * 288, 100), (1 << 40, 1000)])
def test_the_batch_size_follows_the_free_memory(runner, tmp_path, monkeypatch, free, expected):
    """A row of 6 slots of 12 bytes is counted four times."""
    path = save(tmp_path / "in.npz", rows(1000))
    monkeypatch.setattr(plan, "_available_bytes", lambda: free)
    reader = open_reader(path, runner.signature, STEPS)
    assert plan.make_plan(runner, path, reader, ".npz", STEPS, None).batch == expected
    assert plan.make_plan(runner, path, reader, ".npz", STEPS, 7).batch == 7
    reader.close()


@pytest.mark.parametrize("name", ["cut.npz", "cut.safetensors", "cut.parquet", "cut.npy"])
def test_a_truncated_file_is_refused(runner, tmp_path, name):
    whole = tmp_path / f"whole{(tmp_path / name).suffix}"
    if whole.suffix == ".npy":
        runner = Runner.load(save_step(tmp_path / "plain.onnx", takes_inputs=False), "cpu")
        np.save(whole, rows()["start"])
    else:
        save(whole, rows())
    (tmp_path / name).write_bytes(whole.read_bytes()[:-300])
    with pytest.raises(ValueError, match=r"cut\.\w+ .*(damaged|truncated)"):
        run_batch(runner, tmp_path / name, tmp_path / "out.npz", steps=STEPS)
    assert not (tmp_path / "out.npz").exists()


def test_an_output_that_would_delete_something_is_refused(runner, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    path = save(source / "a.npz", rows())
    other = tmp_path / "home"
    other.mkdir()
    (other / "letter.txt").write_text("dear", encoding="utf-8")
    file = tmp_path / "out.npz"
    file.write_bytes(b"old")
    for given, output, message in [
        (path, path, "must lie apart"),
        (source, source, "must lie apart"),
        (source, tmp_path, "must lie apart"),
        (source, other, r"holds 'letter\.txt'"),
        (source, file, "must be a directory"),
        (path, other, "must be a file"),
    ]:
        with pytest.raises(ValueError, match=message):
            run_batch(runner, given, output, steps=STEPS, force=True)
    assert (path.exists(), (other / "letter.txt").exists(), file.read_bytes()) == (
        True,
        True,
        b"old",
    )


@pytest.mark.parametrize("place", [{}, {"data_offsets": [0, 64]}])
def test_safetensors_whose_header_does_not_fit_are_refused(runner, tmp_path, place):
    header = json.dumps({"start": {"dtype": "F32", "shape": [9, 2, WIDTH], **place}}).encode()
    path = tmp_path / "in.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4096))
    with pytest.raises(ValueError, match=r"is no \.safetensors file of numbers"):
        run_batch(runner, path, tmp_path / "out.npz", steps=STEPS)
