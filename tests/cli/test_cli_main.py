import importlib.metadata
import subprocess
import sys

import click
import pytest

from memmodel.cli import SUBCOMMANDS, cli, main


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    captured = capsys.readouterr()
    return exit_.value.code, captured.out, captured.err


@pytest.fixture
def failing(monkeypatch):
    """A subcommand ``fail`` that raises what the test puts into the list."""
    errors = []

    @click.command
    def fail():
        raise errors[0]

    get_command = cli.get_command
    monkeypatch.setattr(
        cli, "get_command", lambda ctx, name: fail if name == "fail" else get_command(ctx, name)
    )
    return errors


def test_version(capsys):
    code, out, err = run(capsys, "--version")
    assert (code, err) == (0, "")
    assert out == f"memmodel {importlib.metadata.version('memmodel')}\n"


def test_help_lists_every_subcommand_without_importing_it():
    script = (
        "import sys, memmodel.cli\n"
        "try: memmodel.cli.main(['--help'])\n"
        "except SystemExit as exit: assert exit.code == 0\n"
        "print([name for name in sys.modules if name == 'torch' or name == 'onnxruntime'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *text, imported = done.stdout.splitlines()
    assert imported == "[]"
    for name, summary in SUBCOMMANDS.items():
        assert any(line.split() == [name, *summary.split()] for line in text)


def paths(command, path):
    """The command at ``path`` and those below it."""
    yield path
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from paths(below, [*path, name])


@pytest.mark.parametrize("name", [None, *SUBCOMMANDS])
def test_help_fits_in_80_columns(capsys, name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    start = [[]] if name is None else paths(cli.get_command(click.Context(cli), name), [name])
    for path in start:
        code, out, err = run(capsys, *path, "--help")
        assert (code, err) == (0, ""), path
        assert out.startswith(f"Usage: {' '.join(['memmodel', *path])} ")
        assert max(map(len, out.splitlines())) <= 80, path
        check_options_are_described(out)


def check_options_are_described(text):
    options = text.partition("Options:\n")[2].partition("\nCommands:")[0].splitlines()
    assert options
    for line, following in zip(options, [*options[1:], ""], strict=True):
        if line.startswith("  -"):
            described = "  " in line[2:] or following.startswith("     ")
            assert described, line


def test_no_subcommand_shows_the_help(capsys):
    code, out, err = run(capsys)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: memmodel")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["launch"], "No such command 'launch'"),
        (["--fast"], "No such option '--fast'"),
        (["train", "--epochs", "many"], "'many' is not a valid integer"),
        (["train", "--out", "x"], "Missing option '--data'"),
    ],
)
def test_bad_use_is_one_line_and_exit_code_2(capsys, arguments, words):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("memmodel: error: ")
    assert words in err
    assert "--help)" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("window must be at least 1, got 0"), 2, "window must be at least 1, got 0"),
        (FileNotFoundError(2, "No such file", "a b.csv"), 2, "No such file: a b.csv"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (RuntimeError("a\n  b"), 1, "RuntimeError: a b (--debug shows where)"),
        (MemoryError(), 1, "MemoryError (--debug shows where)"),
        (KeyError("x"), 1, "KeyError: 'x' (--debug shows where)"),
        (click.ClickException("baselines not beaten"), 1, "baselines not beaten"),
    ],
)
def test_errors_become_one_line(capsys, failing, error, code, line):
    failing.append(error)
    assert run(capsys, "fail") == (code, "", f"memmodel: error: {line}\n")


def test_interrupt(capsys, failing):
    failing.append(KeyboardInterrupt())
    code, out, err = run(capsys, "fail")
    assert (code, out, err.strip()) == (130, "", "memmodel: interrupted")


@pytest.mark.parametrize("arguments", [["--debug", "fail"], ["fail", "--debug"]])
def test_debug_shows_the_traceback(failing, arguments):
    failing.append(ValueError("window"))
    with pytest.raises(ValueError, match="window"):
        main(arguments)


def test_a_missing_subcommand_module_leaves_the_others_alone(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "memmodel.cli.bench", None)
    code, _, err = run(capsys, "bench")
    assert code == 1
    assert err.count("\n") == 1
    assert run(capsys, "--help")[0] == 0
    assert run(capsys, "train", "--help")[0] == 0


def test_python_m_memmodel():
    done = subprocess.run(
        [sys.executable, "-m", "memmodel", "launch"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "memmodel: error: No such command 'launch'. (see memmodel --help)\n"
