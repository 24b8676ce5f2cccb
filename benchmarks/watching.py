"""What watching costs: evaluation of all laws, and the monitor, as shares of a training step.

    python benchmarks/watching.py [--steps 10] [--json]

The model is a 12-layer decoder (d 192, hidden 768, 3 heads, rotary, RMSNorm, SwiGLU, 10 000 words) trained by SGD in float32
on 8 × 256 tokens. Steps and evaluations take turns in one process; shares are ratios of medians. The monitor's share is the time
spent in its hooks and records while it trains. The floor is one read of all weights and gradients (a dot product of each pair).
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from conserved.catalog import Decoder, TransformerConfig
from conserved.law import Evaluator
from conserved.monitor import Monitor

CONFIG = TransformerConfig(dim=192, layers=12, heads=3, hidden=768, vocab=10_000, tokens=256)
TARGETS = {"value and residual": 0.015, "monitor, every step, exact": 0.04, "monitor, every 10, sampled": 0.005}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="training steps measured for each row")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    rows = measure(options.steps)
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'what':<32}{'ms':>9}{'share':>9}{'target':>9}")
    for name, seconds in rows.items():
        target = f"{TARGETS[name]:9.1%}" if name in TARGETS else ""
        print(f"{name:<32}{1e3 * seconds:9.2f}{seconds / rows['training step']:9.2%}{target}")


def measure(steps: int) -> dict[str, float]:
    """Seconds for each row; all rows of one run side by side."""
    torch.manual_seed(0)
    model = Decoder(CONFIG)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    tokens = torch.randint(CONFIG.vocab, (8, 257))

    def step() -> None:
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        torch.autograd.backward(loss)
        optimizer.step()

    step()
    laws = model.laws()
    params = {name: p.detach() for name, p in model.named_parameters()}
    evaluate = Evaluator(laws)

    def grads() -> dict[str, torch.Tensor]:
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    def floor() -> None:
        for name, grad in grads().items():
            torch.dot(params[name].flatten(), grad.flatten())

    timers: dict[str, Callable[[], object]] = {
        "training step": step,
        "one read of weights and grads": floor,
        "value": lambda: evaluate(params, wanted=("value",)),
        "value and residual": lambda: evaluate(params, grads(), ("value", "first", "magnitude")),
    }
    times: dict[str, list[float]] = {name: [] for name in timers}
    for number in range(steps + 1):
        for name, call in timers.items():
            start = time.perf_counter()
            call()
            if number:  # the first round allocates
                times[name].append(time.perf_counter() - start)
    rows = {name: statistics.median(seconds) for name, seconds in times.items()}
    rows["monitor, every step, exact"] = _monitor(model, optimizer, step, steps, every=1, ledger="exact")
    rows["monitor, every 10, sampled"] = _monitor(model, optimizer, step, 10 * max(1, steps // 10), every=10, ledger="sampled")
    return rows


def _monitor(model: Decoder, optimizer: torch.optim.Optimizer, step: Callable[[], None], steps: int, every: int, ledger: str) -> float:
    """Seconds a step that the monitor takes: mean over whole periods, without the first one."""
    with tempfile.TemporaryDirectory() as folder, Monitor(model, optimizer, log=Path(folder) / "run", every=every, ledger=ledger) as monitor:
        spent = 0.0

        def timed(call: Callable[..., object]) -> Callable[..., None]:
            def run(*arguments: object, **options: object) -> None:
                nonlocal spent
                start = time.perf_counter()
                call(*arguments, **options)
                spent += time.perf_counter() - start

            return run

        hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
        for hook in hooks:
            for key in list(hook):
                hook[key] = timed(hook[key])
        end = timed(monitor.step)
        for number in range(steps + every):
            if number == every:
                spent = 0.0
            step()
            end(loss=0.0)
    return spent / steps


if __name__ == "__main__":
    main()
