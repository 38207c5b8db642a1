"""One training step of the character network in JAX: loss, gradients and update under one `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import jax
import jax.numpy as jnp

from truenorm.lab.training import Trainer


def bind(trainer: Trainer) -> Callable[[], float]:
    """A step that starts from the trainer's weights and returns the loss of its batch. Batches are converted before."""
    config = trainer.config
    drawn = [trainer.batches[step] for step in range(trainer.batches.steps)]
    batches = cycle([(one.x.astype("int32"), one.targets.astype("int32")) for one in drawn])
    state = {name: jnp.array(value) for name, value in trainer.network.parameters.items()}
    running = (jnp.zeros(config.hidden), jnp.ones(config.hidden))

    def loss_of(p: dict[str, Any], x: Any, y: Any) -> Any:
        hidden = p["embed.table"][x].reshape(len(x), -1) @ p["linear1.weight"] + p["linear1.bias"]
        mean, var = hidden.mean(0), hidden.var(0)
        hidden = (hidden - mean) * jax.lax.rsqrt(var + 1e-5) * p["norm1.weight"] + p["norm1.bias"]
        logits = jnp.tanh(hidden) @ p["output.weight"] + p["output.bias"]
        return -jax.nn.log_softmax(logits)[jnp.arange(len(y)), y].mean(), (mean, var)

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(p: dict[str, Any], running: tuple[Any, Any], x: Any, y: Any) -> Any:
        (loss, (mean, var)), gradients = jax.value_and_grad(loss_of, has_aux=True)(p, x, y)
        unbiased = var * config.batch / (config.batch - 1)
        running = (running[0] + 0.1 * (mean - running[0]), running[1] + 0.1 * (unbiased - running[1]))
        return {name: value - config.lr * gradients[name] for name, value in p.items()}, running, loss

    def train_step() -> float:
        nonlocal state, running
        state, running, loss = step(state, running, *next(batches))
        return float(loss)

    return train_step
