"""The training loop: resumable at any step, with a result that does not depend on interruptions."""

import copy
import math
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from memmodel.network import MemoryNetwork
from memmodel.train.evaluate import mean_scaled_error, to_tensors
from memmodel.train.options import TrainOptions
from memmodel.train.split import Split, Values

State = dict[str, Any]
Progress = Callable[..., "tqdm[Any]"]  # makes a progress bar; takes tqdm's arguments


class Trainer:
    """Trains a forecaster; all that the rest of the run depends on is in :meth:`state`.

    The order of the windows is a function of seed and epoch, the learning rate of the step. So
    the state is weights, optimiser, random number generators, and a position.

    Args:
        network: the network to train, on ``device``.
        split: the windows.
        scales: each series' scale ``(series,)``.
        options: how to train.
        device: where to train.
    """

    def __init__(
        self,
        network: MemoryNetwork,
        split: Split,
        scales: Values,
        options: TrainOptions,
        device: torch.device,
    ) -> None:
        self.network = network
        self.split = split
        self.scales = scales
        self.options = options
        self.device = device
        self.optimizer = torch.optim.AdamW(
            network.parameters(), lr=options.lr, weight_decay=options.weight_decay
        )
        self.epoch = 0
        self.batch = 0
        self.losses: list[float] = []
        self.history: list[dict[str, float]] = []
        self.best = copy.deepcopy(network.state_dict())
        self._preprocessing = options.preprocessing()
        self._order = lru_cache(maxsize=1)(self._shuffle)

    @property
    def batches(self) -> int:
        """Optimiser steps per epoch."""
        return math.ceil(len(self.split.training) / self.options.batch_size)

    def fit(
        self,
        save: Callable[[State], None],
        *,
        save_every: float = 30.0,
        progress: Progress = tqdm,
    ) -> None:
        """Train from the present position to the last epoch, and load the best epoch's weights.

        Args:
            save: called with :meth:`state` at least every ``save_every`` seconds of training.
            save_every: that time, in seconds; 0 calls it after every step.
            progress: makes the progress bar.

        Raises:
            RuntimeError: the loss is not finite.
        """
        if self.options.compile:
            self.network.compile()
        saved = time.monotonic()
        total, done = self.options.epochs * self.batches, self.epoch * self.batches + self.batch
        with progress(total=total, initial=done, unit="step", desc="training") as bar:
            while self.epoch < self.options.epochs:
                self._epoch_step(bar)
                if time.monotonic() - saved >= save_every:
                    save(self.state())
                    saved = time.monotonic()
        self.network.load_state_dict(self.best)

    def state(self) -> State:
        """What :meth:`load_state` needs to go on: tensors and plain values."""
        state = {
            "network": self.network.state_dict(),
            "best": self.best,
            "optimizer": self.optimizer.state_dict(),
            "epoch": self.epoch,
            "batch": self.batch,
            "losses": self.losses,
            "history": self.history,
            "rng": torch.get_rng_state(),
        }
        if self.device.type == "cuda":
            state["cuda_rng"] = torch.cuda.get_rng_state(self.device)
        return state

    def load_state(self, state: State) -> None:
        """Go back to a saved :meth:`state`."""
        self.network.load_state_dict(state["network"])
        self.best = {name: tensor.to(self.device) for name, tensor in state["best"].items()}
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch, self.batch = state["epoch"], state["batch"]
        self.losses, self.history = list(state["losses"]), list(state["history"])
        torch.set_rng_state(state["rng"])
        if "cuda_rng" in state:
            torch.cuda.set_rng_state(state["cuda_rng"], self.device)

    def _epoch_step(self, bar: "tqdm[Any]") -> None:
        """Take one optimiser step, and close the epoch after its last."""
        loss = self._step()
        self.losses.append(loss)
        self.batch += 1
        bar.update()
        seen = {"epoch": f"{self.epoch + 1}/{self.options.epochs}", "loss": f"{loss:.4f}"}
        if self.history:
            seen["validation"] = f"{self.history[-1]['validation']:.4f}"
        bar.set_postfix(seen, refresh=False)
        if self.batch == self.batches:
            self._close_epoch()

    def _close_epoch(self) -> None:
        validation = mean_scaled_error(
            self.network, self.split.validation, self.scales, self._preprocessing, self.device
        )
        if validation < min((past["validation"] for past in self.history), default=math.inf):
            self.best = copy.deepcopy(self.network.state_dict())
        training = float(np.mean(self.losses))
        self.history.append({"training": training, "validation": validation})
        self.epoch, self.batch, self.losses = self.epoch + 1, 0, []

    def _step(self) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate()
        start, inputs, targets = self._take(self._rows())
        self.network.train()
        self.optimizer.zero_grad()
        output = self.network(start, self.options.horizon, inputs)
        loss = nn.functional.l1_loss(output[..., 0], targets)
        value = loss.item()
        if not math.isfinite(value):
            raise RuntimeError(
                f"the loss became {value} in epoch {self.epoch + 1}, step {self.batch + 1}: "
                f"try a learning rate below {self.options.lr}"
            )
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), self.options.clip)
        self.optimizer.step()
        return value

    def _take(self, rows: np.ndarray) -> tuple[Tensor, Tensor | None, Tensor]:
        windows = self.split.training
        observed, future = windows.take(rows)
        scale = self.scales[windows.which[rows]]
        start, inputs = to_tensors(self.network, self._preprocessing, observed, scale, self.device)
        targets = self._preprocessing.targets(observed, future, scale)
        return start, inputs, torch.from_numpy(targets).to(self.device)

    def _rows(self) -> np.ndarray:
        """The present batch's windows."""
        first = self.batch * self.options.batch_size
        return self._order(self.epoch)[first : first + self.options.batch_size]

    def _shuffle(self, epoch: int) -> np.ndarray:
        generator = np.random.default_rng([self.options.seed, epoch])
        return generator.permutation(len(self.split.training))

    def _learning_rate(self) -> float:
        total = self.options.epochs * self.batches
        step = self.epoch * self.batches + self.batch
        warm_up = min(20, max(1, total // 10))
        decay = 0.5 * (1 + math.cos(math.pi * step / total))
        return self.options.lr * min(1.0, (step + 1) / warm_up) * decay
