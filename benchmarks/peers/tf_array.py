"""TensorFlow's ``TensorArray`` written in a ``tf.while_loop`` of a graph function.

The array is write-once and each step reads all that was written (``gather`` of the first slots).
"""

from collections.abc import Callable

import tensorflow as tf

from workloads import find, make_data


def make(workload: str) -> Callable[[], dict[str, tf.Tensor]]:
    shapes = find(workload)
    if shapes.cell != "attention":
        raise ValueError(f"workload must use the attention cell, got {workload!r}")
    data = make_data(shapes)
    names = list(data.parameters)
    variables = [tf.constant(data.parameters[name]) for name in names]
    start = tf.constant(data.start)
    loss_weights = tf.constant(data.loss_weights)

    def cell(parameters: dict[str, tf.Tensor], prefix: tf.Tensor) -> tf.Tensor:
        """The slot ``(B, D)`` that follows the prefix ``(k, B, D)``."""

        def linear(name: str, x: tf.Tensor) -> tf.Tensor:
            weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
            return tf.matmul(x, weight, transpose_b=True) + bias

        newest = prefix[-1]
        query = linear("query", newest) * shapes.width**-0.5
        weights = tf.nn.softmax(tf.einsum("bd,kbd->bk", query, prefix))
        read = tf.einsum("bk,kbd->bd", weights, prefix)
        hidden = tf.tanh(linear("controller", tf.concat([newest, read], axis=1)))
        return read + linear("output", hidden)

    def roll(parameters: dict[str, tf.Tensor], start: tf.Tensor) -> tf.Tensor:
        array = tf.TensorArray(
            tf.float32,
            size=shapes.slots,
            clear_after_read=False,
            element_shape=[shapes.batch, shapes.width],
        )
        array = array.write(0, start[:, 0])
        for i in tf.range(1, shapes.slots):
            array = array.write(i, cell(parameters, array.gather(tf.range(i))))
        return array.read(shapes.slots - 1)

    @tf.function
    def step(start: tf.Tensor, *variables: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch([start, *variables])
            last = roll(dict(zip(names, variables, strict=True)), start)
            loss = tf.reduce_sum(last * loss_weights)
        return loss, tape.gradient(loss, [start, *variables])

    def run() -> dict[str, tf.Tensor]:
        loss, gradients = step(start, *variables)
        loss.numpy()  # waits for the graph
        return {"loss": loss} | dict(zip(["start", *names], gradients, strict=True))

    return run
