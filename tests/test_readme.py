"""The code blocks of the README and of the training guide run, in order, as a reader would."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def blocks(page):
    """Language and text of each fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)


@pytest.fixture
def follow(tmp_path, monkeypatch):
    """Run a page's blocks in an empty directory that holds ``series.csv``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    t = np.arange(400)
    noise = np.random.default_rng(0).normal(size=400) / 2
    values = 20 + 5 * np.sin(2 * np.pi * t / 12) + 0.02 * t + noise
    Path("series.csv").write_text("sales\n" + "\n".join(map(str, values)) + "\n")

    def follow(page):
        namespace = {"output": (output := [])}
        for language, code in blocks(page):
            if language == "python":
                exec(compile(code, page.name, "exec"), namespace)
            elif "pip install" not in code:  # .ci/run and the demo's own test run those
                done = subprocess.run(["bash", "-ec", code], capture_output=True, text=True)
                assert done.returncode == 0, f"{code}\n{done.stderr}"
                output.append(done.stdout)
        return namespace

    return follow


def test_the_opening_and_the_two_commands():
    text = README.read_text("utf-8")
    opening = text.split("\n\n")[1]
    assert len(re.findall(r"[.](?=\s|$)", opening)) == 3, "it opens with three sentences"
    sample = next(code for language, code in blocks(README) if language == "python")
    statements = [line for line in sample.splitlines() if line and not line.startswith("#")]
    assert len(statements) <= 10
    commands = [code.strip() for language, code in blocks(README) if language == "sh"]
    assert commands[:2] == [
        "pip install -c constraints.txt . && memmodel demo",
        "pip install -c constraints.txt -e '.[test]' && pytest",
    ]


@pytest.mark.parametrize("page", [README, ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")])
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


def test_readme(follow):
    found = follow(README)
    assert np.load("served.npz")["output"].shape == (1, 12, 1)
    assert found["slot"].shape == (16, 64)
    assert "memmodel is the best forecaster for 1 of 1 series" in "".join(found["output"])


def test_training_guide(follow):
    found = follow(ROOT / "docs" / "training.md")
    assert found["forecast"].shape == (1, 12)
    assert set(found["run"].errors) == {"sine", "line"}
