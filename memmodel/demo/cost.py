"""What a training step costs as the memory grows: torch.cat beside memmodel."""

from dataclasses import dataclass

from memmodel.bench import Strategy, measure

STEPS = (64, 128, 256, 512)
BATCH, WIDTH = 16, 64
CAT, MEMMODEL = "torch.cat", "memmodel"


@dataclass(frozen=True)
class Cost:
    """Figures of one strategy at one number of steps.

    Attributes:
        strategy: ``"torch.cat"`` or ``"memmodel"``.
        steps: slots written.
        seconds: the fastest of a few training steps (forward and backward).
        peak_bytes: peak memory of a training step above the warmed-up process.
    """

    strategy: str
    steps: int
    seconds: float
    peak_bytes: int


def measure_costs(steps: int) -> list[Cost]:
    """Measure forward and backward of an AttentionCell, each strategy in its own process.

    Raises:
        RuntimeError: a strategy failed; the message says why.
    """
    arguments = {
        "cell": "attention",
        "batch": BATCH,
        "slot": [WIDTH],
        "steps": steps,
        "compile": False,
    }
    strategies = [
        Strategy(CAT, "memmodel.bench.training:make_cat", arguments),
        Strategy(MEMMODEL, "memmodel.bench.training:make_memmodel", arguments),
    ]
    costs = []
    for name, figures in measure(strategies, rounds=3, reference=CAT).items():
        if figures.best_seconds is None or figures.peak_bytes is None:
            raise RuntimeError(f"{name} at {steps} steps: {figures.error}")
        costs.append(Cost(name, steps, figures.best_seconds, figures.peak_bytes))
    return costs
