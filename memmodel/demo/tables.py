"""The demo's tables."""

from collections.abc import Mapping, Sequence

from memmodel.demo.cost import CAT, MEMMODEL, Cost


def score_table(scores: Mapping[str, float]) -> str:
    """Errors, best first, each with how far memmodel is below it.

    Args:
        scores: forecaster -> mean absolute error.
    """
    lines = []
    for name, error in sorted(scores.items(), key=lambda item: item[1]):
        margin = 1 - scores["memmodel"] / error if error else 0.0
        side = "below" if margin >= 0 else "ABOVE"
        note = "" if name == "memmodel" else f"memmodel is {abs(margin):.0%} {side} it"
        lines.append(f"    {name:<24}{error:>8.3f}   {note}".rstrip())
    return "\n".join(lines)


def cost_table(costs: Sequence[Cost]) -> str:
    """Peak memory and time against steps, and the ratios at the greatest number of steps."""
    steps = sorted({cost.steps for cost in costs})
    by_key = {(cost.strategy, cost.steps): cost for cost in costs}
    lines = [f"    {'steps':<24}" + "".join(f"{count:>9}" for count in steps)]
    for name in (CAT, MEMMODEL):
        peaks = [by_key[name, count].peak_bytes / 2**20 for count in steps]
        lines.append(f"    {name + ', peak MiB':<24}" + "".join(f"{x:>9.1f}" for x in peaks))
    for name in (CAT, MEMMODEL):
        times = [by_key[name, count].seconds * 1e3 for count in steps]
        lines.append(f"    {name + ', ms':<24}" + "".join(f"{x:>9.1f}" for x in times))
    cat, ours = (by_key[name, steps[-1]] for name in (CAT, MEMMODEL))
    memory, speed = cat.peak_bytes / ours.peak_bytes, cat.seconds / ours.seconds
    lines.append(
        f"    at {steps[-1]} steps: 1/{memory:.0f} of the memory of torch.cat, "
        f"{speed:.1f} times as fast"
    )
    return "\n".join(lines)
