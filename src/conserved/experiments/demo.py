"""The demonstration: a small modern decoder on real text, every law watched, at three learning rates."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import nn

from conserved.catalog import Decoder, TransformerConfig, find_laws
from conserved.errors import ConfigurationError, RunError
from conserved.experiments.scaling import exponent
from conserved.experiments.text import CharacterText, python_topics
from conserved.law import Law, LawSet, Term
from conserved.monitor import LawAccount, Monitor
from conserved.symmetry import Symmetry
from conserved.tolerance import residual_bound

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
CONTROL = "control"
WARMUP_RATE = 0.2


def run_name(rate: float) -> str:
    """The directory of the run at a learning rate."""
    return f"lr-{rate:g}"


@dataclass(frozen=True)
class DemoConfig:
    """Choices of the demonstration.

    Args:
        dtype: "float64", "float32" or "bfloat16".
        learning_rates: at least two.
        steps: watched mini-batch SGD steps at each rate.
        warmup: unwatched steps before, with a rate falling to zero; all runs start from their end. Exponents are those of
            small τk: where gradients change much during a run, they are not those of the learning rate alone.
        batch: windows in a batch.
        seed: of weights and batches, the same for every rate.
    """

    dtype: str = "float64"
    learning_rates: tuple[float, ...] = (0.001, 0.002, 0.004)
    steps: int = 60
    warmup: int = 300
    batch: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the choices."""
        if self.dtype not in DTYPES:
            raise ConfigurationError(f"demo: dtype={self.dtype!r} is unknown; choose one of {', '.join(DTYPES)}")
        names = {run_name(rate) for rate in self.learning_rates}
        if len(names) < 2 or len(names) < len(self.learning_rates) or not all(0 < rate < inf for rate in self.learning_rates):
            raise ConfigurationError(f"demo: learning_rates={self.learning_rates}; an exponent needs at least two positive rates, all different")
        if self.steps < 1 or self.batch < 1 or self.warmup < 0:
            raise ConfigurationError(f"demo: steps={self.steps}, batch={self.batch}, warmup={self.warmup}; give at least 1, 1 and 0")
        if not 0 <= self.seed < 2**63:
            raise ConfigurationError(f"demo: seed={self.seed}; give a whole number from 0 to 2**63 - 1")


@dataclass(frozen=True)
class FamilySummary:
    """One family of laws over all runs; None is "not evaluated".

    Args:
        family: its name.
        symmetry: what conserves it.
        laws: number of independent scalars.
        exact: whether all its laws are exact.
        worst_residual: over all laws, steps and rates; scale-free.
        drift: at the largest rate, ‖h(θ_k) − h(θ_0)‖ over the family, in units of h.
        predicted_drift: Σ τ²h(g) at that rate.
        mismatch: largest ‖observed − predicted‖/‖observed‖ over the rates.
        floor: ‖rounding‖ at the largest rate: below it, drift is rounding.
        exponent: of the drift in the learning rate, at a fixed number of steps; None where half of a drift may be rounding.
        note: what to know when reading the row.
    """

    family: str
    symmetry: str
    laws: int
    exact: bool
    worst_residual: float | None
    drift: float | None
    predicted_drift: float | None
    mismatch: float | None
    floor: float | None
    exponent: float | None
    note: str


@dataclass(frozen=True)
class DemoResult:
    """What the demonstration found, and where it wrote it."""

    families: tuple[FamilySummary, ...]
    control: dict[str, Any]
    runs: tuple[dict[str, Any], ...]
    configuration: dict[str, Any]
    directory: str
    report: str
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @property
    def holds(self) -> bool:
        """Whether every exact family keeps its identity to rounding."""
        bound = residual_bound(DTYPES[self.configuration["dtype"]])
        return all(row.worst_residual is not None and row.worst_residual <= bound for row in self.families if row.exact)


def demo_config(vocab: int) -> TransformerConfig:
    """The demonstration's decoder: GQA with RoPE, RMSNorm, one SwiGLU layer and one sparse mixture of experts."""
    return TransformerConfig(
        dim=32, layers=2, heads=4, kv_heads=2, hidden=48, mlp=("swiglu", "moe"), experts=4, top_k=2, norm="rms", position="rope", tokens=48, vocab=vocab
    )


def demo_model(vocab: int = 96, seed: int = 0) -> Decoder:
    """The demonstration's model, with gains drawn at random: at gains of one, errors in a gain's gradient would not show."""
    torch.manual_seed(seed)
    model = Decoder(demo_config(vocab))
    with torch.no_grad():
        model.E.mul_(0.5)
        for name, parameter in model.named_parameters():
            if name.endswith("gamma"):
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def control_law(laws: LawSet) -> Law:
    """The negative control: the SwiGLU law written with the gate matrix B instead of C. It is not a law."""
    law = laws.select(family="glu")[0]
    prefix = law.layer + "."
    wrong = tuple(Term(prefix + "B", t.shape, t.axes, t.coefficient) if t.parameter == prefix + "C" else t for t in law.terms)
    reason = "negative control: the SwiGLU law written for the gate matrix B, deliberately wrong"
    return Law(f"{law.layer}.{CONTROL}", CONTROL, law.layer, Symmetry.RESCALE, wrong, index="i", exact=False, reason=reason)


def run_demo(directory: Path, config: DemoConfig | None = None, progress: Callable[[int, int], None] | None = None) -> DemoResult:
    """Train at every rate, write the runs, their summary and the report.

    Args:
        directory: a new or empty directory.
        config: the choices.
        progress: called with (steps done, steps in all).

    Raises:
        RunError: the directory is in use.
        OSError: the directory cannot be made or written.
    """
    from conserved.report import write_report

    config = DemoConfig() if config is None else config
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise RunError(f"{directory} is in use; choose a new or empty directory for the demonstration")
    directory.mkdir(parents=True, exist_ok=True)  # one that cannot be written is told before the training, not after
    started = time.monotonic()
    text = python_topics()
    laws = find_laws(demo_model(len(text.alphabet), config.seed))
    watched = LawSet((*laws, control_law(laws)), laws.absences)
    accounts: dict[float, list[LawAccount]] = {}
    runs = []
    total = config.warmup + config.steps * len(config.learning_rates)

    def done_from(offset: int) -> Callable[[int], object]:
        return lambda done: progress and progress(offset + done, total)

    start = _warm_up(config, text, done_from(0))
    for number, rate in enumerate(config.learning_rates):
        name = run_name(rate)
        accounts[rate] = _train(directory / name, config, rate, text, watched, start, done_from(config.warmup + number * config.steps))
        runs.append({"directory": name, "lr": rate})
    described = asdict(config) | {"text": "pydoc_data.topics", "characters": len(text.tokens), "model": asdict(demo_config(len(text.alphabet)))}
    families, control = tuple(_families(laws, accounts)), _control(watched, accounts)
    result = DemoResult(families, control, tuple(runs), described, str(directory), str(directory / "report.html"), time.monotonic() - started)
    summary = result.to_json()
    (directory / "summary.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False), encoding="utf-8")
    write_report(directory)
    return replace(result, seconds=time.monotonic() - started)


def _warm_up(config: DemoConfig, text: CharacterText, done: Callable[[int], object]) -> dict[str, torch.Tensor]:
    """Weights after some unwatched training: from there on, gradients change little, and exponents can be read off."""
    model = demo_model(len(text.alphabet), config.seed).to(DTYPES[config.dtype])
    optimizer = torch.optim.SGD(model.parameters(), lr=WARMUP_RATE)
    generator = torch.Generator().manual_seed(config.seed + 1)
    for step in range(config.warmup):
        optimizer.param_groups[0]["lr"] = WARMUP_RATE * (1 - step / config.warmup)
        _loss(model, text.batch(config.batch, model.config.tokens, generator), optimizer)
        optimizer.step()
        done(step + 1)
    return model.state_dict()


def _loss(model: Decoder, window: torch.Tensor, optimizer: torch.optim.Optimizer) -> float:
    """One forward and backward pass; returns the loss in nats for each character."""
    optimizer.zero_grad()
    loss = nn.functional.nll_loss(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
    torch.autograd.backward(loss)
    return loss.item()


def _train(
    directory: Path, config: DemoConfig, rate: float, text: CharacterText, laws: LawSet, start: dict[str, torch.Tensor], done: Callable[[int], object]
) -> list[LawAccount]:
    model = demo_model(len(text.alphabet), config.seed).to(DTYPES[config.dtype])
    model.load_state_dict(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(config.seed)
    described = asdict(config) | {"lr": rate}
    with Monitor(model, optimizer, laws, log=directory, configuration=described) as monitor:
        for step in range(config.steps):
            window = text.batch(config.batch, model.config.tokens, generator)
            loss = _loss(model, window, optimizer)
            optimizer.step()
            monitor.step(loss=loss)
            done(step + 1)
        return monitor.accounts()


def _norm(values: list[float | None]) -> float | None:
    """Root of the sum of squares; None if any is missing."""
    return None if any(v is None for v in values) else sum(v**2 for v in values if v is not None) ** 0.5


def _families(laws: LawSet, accounts: dict[float, list[LawAccount]]) -> list[FamilySummary]:
    rows = []
    rates = sorted(accounts)
    for family in laws.families:
        chosen = laws.select(family=family)
        names = {law.name for law in chosen}
        by_rate = {rate: [a for a in accounts[rate] if a.name in names] for rate in rates}
        drifts = [_norm([a.drift for a in by_rate[rate]]) for rate in rates]
        linear = chosen[0].symmetry.degree == 1
        last = by_rate[rates[-1]]
        worst = [a.worst_residual for rate in rates for a in by_rate[rate]]
        floors = [_norm([a.floor for a in by_rate[rate]]) for rate in rates]
        exact = all(law.exact for law in chosen)
        mismatches = [_mismatch(by_rate[rate]) for rate in rates]
        blurred = "" if linear else _blurred(rates, drifts, floors)
        notes = ("linear: plain SGD does not move it, what is seen is rounding" if linear else "", "" if exact else chosen[0].reason, blurred)
        rows.append(
            FamilySummary(
                family,
                chosen[0].symmetry.value,
                chosen.independent_count,
                exact,
                None if any(w is None for w in worst) else max(w for w in worst if w is not None),
                drifts[-1],
                _norm([a.predicted for a in last]),
                None if linear or any(m is None for m in mismatches) else max(m for m in mismatches if m is not None),
                floors[-1],
                None if linear or blurred else exponent(rates, drifts),
                "; ".join(filter(None, notes)),
            )
        )
    return rows


def _blurred(rates: list[float], drifts: list[float | None], floors: list[float | None]) -> str:
    """At which rates half of the drift may be rounding, which has no exponent; empty if at none."""
    where = [f"{r:g}" for r, drift, floor in zip(rates, drifts, floors, strict=True) if drift is not None and floor is not None and drift <= 2 * floor]
    return f"no exponent: half of its drift may be rounding at lr {', '.join(where)}" if where else ""


def _mismatch(accounts: list[LawAccount]) -> float | None:
    """‖observed − predicted‖/‖observed‖ over several laws."""
    gaps = [None if a.mismatch is None or a.drift is None else a.mismatch * a.drift for a in accounts]
    gap, drift = _norm(gaps), _norm([a.drift for a in accounts])
    return gap / drift if gap is not None and drift else None


def _control(laws: LawSet, accounts: dict[float, list[LawAccount]]) -> dict[str, Any]:
    law = laws.select(family=CONTROL)[0]
    rates = sorted(accounts)
    chosen = [next(a for a in accounts[rate] if a.name == law.name) for rate in rates]
    drifts = [a.drift for a in chosen]
    blurred = _blurred(rates, drifts, [a.floor for a in chosen])
    return {
        "law": law.name,
        "formula": law.formula,
        "worst_residual": chosen[-1].worst_residual,
        "drift": drifts[-1],
        "exponent": None if blurred else exponent(rates, drifts),
        "note": f"{law.reason}; {blurred or 'a false law drifts at first order'}",
    }
