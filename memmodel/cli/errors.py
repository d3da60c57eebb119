"""Errors as the command line shows them: one line on stderr and an exit code."""

import click

BAD_USE = 2
FAILED = 1
INTERRUPTED = 130  # 128 + SIGINT, what a shell reports

# The library raises these for an argument, a file name or data that breaks a rule.
_USERS_FAULT = (
    ValueError,
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
)


def report(error: BaseException) -> int:
    """Print ``error`` as one line on stderr and return the exit code it stands for."""
    if isinstance(error, click.Abort | KeyboardInterrupt):
        click.echo("memmodel: interrupted", err=True)
        return INTERRUPTED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)  # a bare group name asks what it can do
        return BAD_USE
    click.echo(f"memmodel: error: {_line(error)}", err=True)
    if isinstance(error, click.ClickException):
        return error.exit_code
    return BAD_USE if isinstance(error, _USERS_FAULT) else FAILED


def _line(error: BaseException) -> str:
    if isinstance(error, click.UsageError):
        message = _one_line(error.format_message())
        return f"{message} (see {error.ctx.command_path} --help)" if error.ctx else message
    if isinstance(error, click.ClickException):
        return _one_line(error.format_message())
    if isinstance(error, OSError) and error.strerror:
        name = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{name}"
    message = _one_line(str(error))
    if isinstance(error, ValueError | OSError) and message:
        return message
    # An error nobody foresaw: its class is part of the message, and the traceback is one flag away.
    kind = type(error).__name__
    return (
        f"{kind}: {message} (--debug shows where)" if message else f"{kind} (--debug shows where)"
    )


def _one_line(message: str) -> str:
    return " ".join(message.split())
