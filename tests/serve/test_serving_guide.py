"""Run every code block of the serving guide, in order, as a reader would."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from service import free_port

GUIDE = Path(__file__).parents[2] / "docs" / "serving.md"
BLOCKS = re.findall(r"```(python|bash)\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Runs a shell command in which ``memmodel`` is this installation's."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "memmodel"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m memmodel "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.chdir(tmp_path)

    def run(script, **options):
        return subprocess.run(
            ["bash", "-euc", script], check=True, capture_output=True, text=True, **options
        ).stdout

    return run


def test_every_block_runs(shell):
    ports = {"8080": str(free_port()), "8081": str(free_port())}
    names, services, answers = {}, [], []
    assert len(BLOCKS) == 11
    try:
        for language, block in BLOCKS:
            for documented, free in ports.items():
                block = block.replace(documented, free)
            if block.startswith("memmodel serve http"):
                process = subprocess.Popen(
                    ["bash", "-euc", f"exec {block}"], stderr=subprocess.PIPE
                )
                services.append(process)
                assert b"is served at" in process.stderr.readline()
            elif language == "bash":
                answers.append(shell(block))
            else:
                exec(compile(block, str(GUIDE), "exec"), names)
    finally:
        for process in services:
            process.terminate()
            assert process.wait(30) == 0
            process.stderr.close()
    assert names["report"].rows == 1000
    assert names["report"].failed == 0
    with np.load("served.npz") as here, np.load("served-by-ray.npz") as there:
        np.testing.assert_array_equal(here["memory"], there["memory"])
    curl = next(answer for answer in answers if '"model_name"' in answer)
    assert '"shape":[1,3,16]' in curl
    assert names["answer"].as_numpy("output").shape == (2, 12, 1)
    assert Path("models/memmodel/config.pbtxt").is_file()
