"""Values that several subcommands take."""


def split_names(text: str | None) -> list[str] | None:
    """Split ``"a, b"`` into names; None stays None."""
    return None if text is None else [name.strip() for name in text.split(",")]
