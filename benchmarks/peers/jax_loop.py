"""``jax.lax.scan`` carrying the memory, and Equinox's checkpointed loop with a write-once buffer.

Shapes are static in XLA, so each step reads the whole memory under a mask.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from workloads import find, make_data

Parameters = dict[str, jax.Array]


def attention_cell(parameters: Parameters, memory: jax.Array, index: jax.Array) -> jax.Array:
    """The slot ``(B, D)`` that follows slot ``index`` of the memory ``(B, N, D)``."""

    def linear(name: str, x: jax.Array) -> jax.Array:
        return x @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]

    newest = jax.lax.dynamic_index_in_dim(memory, index, axis=1, keepdims=False)
    scores = jnp.einsum("bd,bnd->bn", linear("query", newest), memory) * memory.shape[2] ** -0.5
    written = jnp.arange(memory.shape[1]) <= index
    weights = jax.nn.softmax(jnp.where(written, scores, -jnp.inf), axis=1)
    read = jnp.einsum("bn,bnd->bd", weights, memory)
    hidden = jnp.tanh(linear("controller", jnp.concatenate([newest, read], axis=1)))
    return read + linear("output", hidden)


def _roll_by_scan(parameters: Parameters, start: jax.Array, steps: int) -> jax.Array:
    def step(memory: jax.Array, index: jax.Array) -> tuple[jax.Array, None]:
        slot = attention_cell(parameters, memory, index)
        return memory.at[:, index + 1].set(slot), None

    memory = jnp.pad(start, ((0, 0), (0, steps), (0, 0)))
    return jax.lax.scan(step, memory, jnp.arange(steps))[0]


def _roll_by_equinox(
    parameters: Parameters, start: jax.Array, steps: int, checkpoints: int | None
) -> jax.Array:
    from equinox.internal import while_loop

    def step(carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        index, memory = carry
        slot = attention_cell(parameters, memory[:], index)
        return index + 1, memory.at[:, index + 1].set(slot)

    memory = jnp.pad(start, ((0, 0), (0, steps), (0, 0)))
    _, memory = while_loop(
        lambda carry: carry[0] < steps,
        step,
        (jnp.array(0), memory),
        max_steps=steps,
        buffers=lambda carry: carry[1],
        kind="checkpointed",
        checkpoints=checkpoints,
    )
    return memory


def make_scan(workload: str) -> Callable[[], dict[str, jax.Array]]:
    return _training_step(workload, _roll_by_scan)


def make_equinox(workload: str, *, every_step: bool) -> Callable[[], dict[str, jax.Array]]:
    """Equinox's loop; a checkpoint at every step is no loss here, as the carry is one index."""
    checkpoints = find(workload).steps if every_step else None
    return _training_step(workload, partial(_roll_by_equinox, checkpoints=checkpoints))


def _training_step(
    workload: str, roll: Callable[[Parameters, jax.Array, int], jax.Array]
) -> Callable[[], dict[str, jax.Array]]:
    shapes = find(workload)
    if shapes.cell != "attention":
        raise ValueError(f"workload must use the attention cell, got {workload!r}")
    data = make_data(shapes)
    parameters = {name: jnp.asarray(value) for name, value in data.parameters.items()}

    def loss(parameters: Parameters, start: jax.Array) -> jax.Array:
        return (roll(parameters, start, shapes.steps)[:, -1] * data.loss_weights).sum()

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    start = jnp.asarray(data.start)

    def run() -> dict[str, jax.Array]:
        value, (gradients, start_gradient) = jax.block_until_ready(step(parameters, start))
        return {"loss": value, "start": start_gradient} | gradients

    return run
