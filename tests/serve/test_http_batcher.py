"""Which requests are rolled out together."""

import asyncio

import numpy as np
import pytest

pytest.importorskip("prometheus_client")

from memmodel.serve.http.batcher import Batcher
from memmodel.serve.http.limits import Limits


class Counted:
    """Stands for a runner: repeats the newest slot, and counts the rows of each call."""

    def __init__(self):
        self.rows = []

    def rollout(self, start, steps, inputs):
        self.rows.append(len(start))
        return {"memory": np.concatenate([start, np.repeat(start[:, -1:], steps, axis=1)], axis=1)}


@pytest.mark.parametrize(("result_bytes", "rows"), [(1 << 20, [6]), (2 * 40, [2, 2, 2])])
def test_a_batch_takes_no_more_memory_than_one_request_may(result_bytes, rows):
    runner = Counted()

    async def serve():
        batcher = Batcher(runner, Limits(result_bytes=result_bytes, delay=0.05))
        starts = [np.full((1, 2, 1), i, np.float32) for i in range(6)]
        results = await asyncio.gather(*(batcher.submit(start, 8, None) for start in starts))
        await batcher.drain()
        return results

    for i, result in enumerate(asyncio.run(serve())):
        np.testing.assert_array_equal(result["memory"], np.full((1, 10, 1), i))
    assert runner.rows == rows
