"""Tables for the terminal."""

from collections.abc import Mapping

_SHOWN = 20  # series listed by name


def error_table(errors: Mapping[str, Mapping[str, float]]) -> str:
    """Held-out errors, one line per series, one column per forecaster.

    Args:
        errors: series -> forecaster -> mean absolute error, the same forecasters for each series.
    """
    forecasters = list(next(iter(errors.values())))
    series = list(errors)[:_SHOWN]
    head = ["", *forecasters]
    rows = [[name, *(f"{errors[name][f]:.4g}" for f in forecasters)] for name in series]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = ["Mean absolute error on the held-out tail:"]
    lines += [
        "  ".join(cell.rjust(w) for cell, w in zip(r, widths, strict=True)) for r in (head, *rows)
    ]
    if len(errors) > _SHOWN:
        lines.append(f"... and {len(errors) - _SHOWN} more series, in training.json")
    better = sum(
        all(row["memmodel"] < error for name, error in row.items() if name != "memmodel")
        for row in errors.values()
    )
    lines.append(f"memmodel is the best forecaster for {better} of {len(errors)} series")
    return "\n".join(lines)
