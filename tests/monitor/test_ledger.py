"""The ledger splits every drift without remainder, and changes nothing."""

import dataclasses
import math

import pytest
import torch
from monitor_training import MODEL, RECIPES, Recipe, make_model, naive_drift, recipe, snapshot, train
from torch import nn

import conserved
from conserved.catalog import Decoder, FeedForward, GatedLinearUnit, find_laws
from conserved.errors import ConfigurationError, MissingParameterError, NoLawsError, NonFiniteError, RunError
from conserved.monitor import LawAccount, Monitor

CLOSURE = 1e-10  # what is left of a drift in float64, relative to it
ABSOLUTE = 1e-13  # the same relative to the size of the law, for laws that hardly drift
STEPS = range(200)


def _run(how: Recipe, steps: range = STEPS, dtype: torch.dtype = torch.float64, **options: object) -> tuple[Decoder, Monitor]:
    model = make_model(dtype=dtype)
    optimizer = how.optimizer(model.parameters())
    monitor = Monitor(model, optimizer, **options)  # type: ignore[arg-type]
    train(model, optimizer, how, steps, monitor)
    return model, monitor


@pytest.mark.parametrize("how", RECIPES, ids=lambda how: how.id)
def test_nothing_is_left_over_and_nothing_is_changed(how: Recipe) -> None:
    before = snapshot(make_model())
    model, monitor = _run(how)
    accounts = monitor.accounts()
    drift = naive_drift(monitor.laws, before, snapshot(model))
    for account in accounts:
        assert account.drift == pytest.approx(float(drift[account.name].norm()), rel=1e-9, abs=1e-14)
        parts = account.step_size + account.decay + account.work
        assert abs(account.drift - parts) <= CLOSURE * account.drift + ABSOLUTE * account.size, account
        assert account.floor <= CLOSURE * account.drift + ABSOLUTE * account.size, account
    moved = [a for a in accounts if a.drift > 1e-4 * a.size]  # below, machine epsilon of h itself is all one sees
    assert moved, "no law drifted enough to test the closure relative to the drift"
    assert all(a.floor <= CLOSURE * a.drift for a in moved)
    monitor.close()

    alone = make_model()
    train(alone, how.optimizer(alone.parameters()), how, STEPS)
    for (name, watched), (_, unwatched) in zip(model.named_parameters(), alone.named_parameters(), strict=True):
        assert torch.equal(watched, unwatched), name


def test_plain_sgd_drifts_as_predicted_and_does_no_work() -> None:
    _, monitor = _run(recipe("sgd"))
    for law, account in zip(monitor.laws, monitor.accounts(), strict=True):
        if law.symmetry.degree == 1:
            assert account.predicted == 0
            assert account.mismatch is None
            assert account.drift <= ABSOLUTE * account.size
        elif law.exact:
            assert account.mismatch <= 1e-9
            assert account.work == 0
            assert account.worst_residual <= conserved.tolerance.residual_bound(torch.float64)


def test_a_false_law_drifts_through_work() -> None:
    """Negative control: the same ledger books the drift of a wrong law as work, and its residual is large."""
    from conserved.experiments.demo import control_law

    laws = find_laws(make_model())
    control = control_law(laws)
    model = make_model()
    optimizer = recipe("sgd").optimizer(model.parameters())
    monitor = Monitor(model, optimizer, conserved.LawSet((control,)))
    train(model, optimizer, recipe("sgd"), range(50), monitor)
    (account,) = monitor.accounts()
    assert abs(account.work) > 0.5 * account.drift
    assert account.worst_residual > conserved.tolerance.CONTROL_RESIDUAL
    assert account.mismatch > 0.5


def test_a_wrong_gradient_is_booked_as_work() -> None:
    """A backward pass that is 10 % off in one matrix shows in the residual and in the work of its laws, and nowhere else."""

    def tamper(model: nn.Module) -> None:
        model.get_parameter("layers.0.attention.V").grad.mul_(1.1)  # type: ignore[union-attr]

    model = make_model()
    optimizer = recipe("sgd").optimizer(model.parameters())
    with Monitor(model, optimizer) as monitor:
        train(model, optimizer, recipe("sgd"), range(20), monitor, tamper)
        accounts = {a.name: a for a in monitor.accounts()}
    assert accounts["layers.0.attention.value_output"].worst_residual > 1e-2
    assert abs(accounts["layers.0.attention.value_output"].work) > 0
    assert accounts["layers.0.attention.rope"].worst_residual < 1e-12
    assert accounts["layers.1.attention.value_output"].work == 0


def test_pure_decay_shrinks_quadratic_laws_as_the_product() -> None:
    """Without gradients but with decay λ: h → Π (1 − τλ)² h, decay −2τλh and the small (τλ)²h in the step size."""
    rate, decay, steps = 0.1, 0.5, 10
    model = GatedLinearUnit(3, 4, 2).double()
    start = conserved.value(model.laws()[0], dict(model.named_parameters())).clone()
    optimizer = torch.optim.SGD(model.parameters(), rate, weight_decay=decay)
    monitor = Monitor(model, optimizer)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    (account,) = monitor.accounts()
    kept = (1 - rate * decay) ** (2 * steps)
    assert account.drift == pytest.approx((1 - kept) * float(start.norm()), rel=1e-12)
    sizes = [float(start.norm()) * (1 - rate * decay) ** (2 * k) for k in range(steps)]
    assert account.decay == pytest.approx(2 * rate * decay * sum(sizes), rel=1e-12)
    assert account.step_size == pytest.approx(-((rate * decay) ** 2) * sum(sizes), rel=1e-12)
    assert account.residual is None  # zero gradients: not evaluated


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_low_precision_is_booked_as_rounding(dtype: torch.dtype) -> None:
    """In low precision the gap between observed and predicted drift is the rounding floor of the ledger, all of it."""
    _, monitor = _run(recipe("sgd"), range(60), dtype)
    seen = 0
    for law, account in zip(monitor.laws, monitor.accounts(), strict=True):
        if law.exact and law.symmetry.degree == 2:
            assert account.mismatch * account.drift == pytest.approx(account.floor, rel=1e-6), account
            assert account.work == 0
            seen += account.floor > 0
    assert seen


def test_sampled_ledger_estimates_and_none_keeps_drift_alone() -> None:
    _, exact = _run(recipe("sgd"), range(100))
    _, sampled = _run(recipe("sgd"), range(100), every=5, ledger="sampled")
    _, bare = _run(recipe("sgd"), range(100), every=5, ledger=None)
    by_name = {a.name: a for a in exact.accounts()}
    for a, b in zip(sampled.accounts(), bare.accounts(), strict=True):
        assert a.drift == by_name[a.name].drift == b.drift
        assert (b.step_size, b.decay, b.work, b.rounding, b.predicted) == (None,) * 5
        assert b.worst_residual <= by_name[a.name].worst_residual
    glu = "layers.0.mlp.glu"
    estimate = next(a for a in sampled.accounts() if a.name == glu)
    assert estimate.predicted == pytest.approx(by_name[glu].predicted, rel=0.5)
    assert estimate.predicted != by_name[glu].predicted


def test_gain_offsets_and_frozen_parameters() -> None:
    """Gains stored as γ − 1 decay towards γ = 1; a frozen parameter takes its laws away."""
    config = dataclasses.replace(MODEL, norm_offset=1.0)
    model = make_model(config)
    model.get_parameter("layers.0.attention.V").requires_grad_(False)
    how = recipe("sgd-decay")
    optimizer = how.optimizer([p for p in model.parameters() if p.requires_grad])
    before = snapshot(model)
    monitor = Monitor(model, optimizer)
    assert "layers.0.attention.value_output" not in [law.name for law in monitor.laws]
    assert "layers.0.norm1.gain" not in [law.name for law in monitor.laws]  # its column sums include the frozen V
    train(model, optimizer, how, range(50), monitor)
    drift = naive_drift(monitor.laws, before, snapshot(model))
    for account in monitor.accounts():
        assert account.drift == pytest.approx(float(drift[account.name].norm()), rel=1e-9, abs=1e-14)
        assert account.floor <= CLOSURE * account.drift + ABSOLUTE * account.size


def test_steps_without_monitor_step_are_counted() -> None:
    model = make_model()
    optimizer = recipe("sgd").optimizer(model.parameters())
    monitor = Monitor(model, optimizer)
    train(model, optimizer, recipe("sgd"), range(7))
    assert monitor.steps == 7
    monitor.close()
    train(model, optimizer, recipe("sgd"), range(1))
    assert monitor.steps == 7  # hooks are gone


def test_parts_add_up_to_the_drift() -> None:
    _, monitor = _run(recipe("momentum-decay"), range(30))
    for a in monitor.accounts():
        assert isinstance(a, LawAccount)
        assert math.isclose(a.step_size + a.decay + a.work + a.rounding, a.drift, rel_tol=1e-12)


def test_a_diverging_run_is_not_evaluated_but_goes_on() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    monitor = Monitor(model, optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, math.inf)
    optimizer.step()
    with pytest.warns(RuntimeWarning, match="NaN or infinite after step 1"):
        monitor.step()
    assert all(a.drift is None for a in monitor.accounts())
    optimizer.step()
    assert monitor.steps == 2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"every": 0}, ConfigurationError, "every=0; give a number of steps"),
        ({"ledger": "rough"}, ConfigurationError, "ledger='rough' is unknown"),
        ({"laws": conserved.LawSet()}, NoLawsError, "no law to watch: the LawSet is empty"),
        ({"laws": GatedLinearUnit(3, 4, 2).laws()}, MissingParameterError, "the parameter 'A'"),
    ],
    ids=["every", "ledger", "empty", "other-model"],
)
def test_bad_input(options: dict[str, object], error: type[Exception], message: str) -> None:
    model = make_model()
    with pytest.raises(error, match=message):
        Monitor(model, torch.optim.SGD(model.parameters(), 0.1), **options)  # type: ignore[arg-type]


def test_no_law_says_why() -> None:
    model = FeedForward(3, 4, 2, "gelu")
    with pytest.raises(NoLawsError, match="gelu is not homogeneous"):
        Monitor(model, torch.optim.SGD(model.parameters(), 0.1))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_start(bad: float) -> None:
    model = make_model()
    with torch.no_grad():
        model.E[0, 0] = bad
    with pytest.raises(NonFiniteError, match="NaN or infinity at the start"):
        Monitor(model, torch.optim.SGD(model.parameters(), 0.1))


@pytest.mark.parametrize("name", ["sgd", "adamw", "momentum-decay"])
def test_resuming_continues_exactly(name: str) -> None:
    how = recipe(name)
    _, whole = _run(how, range(20))
    model = make_model()
    optimizer = how.optimizer(model.parameters())
    with Monitor(model, optimizer) as first:
        train(model, optimizer, how, range(11), first)
        state = first.state_dict()
    weights, moments = snapshot(model), optimizer.state_dict()

    again = make_model(seed=5)
    again.load_state_dict(weights)
    optimizer = how.optimizer(again.parameters())
    optimizer.load_state_dict(moments)
    with Monitor(again, optimizer, resume=state) as second:
        train(again, optimizer, how, range(11, 20), second)
        assert second.steps == 20
        assert second.accounts() == whole.accounts()


def test_resuming_with_other_weights_laws_or_options_is_refused() -> None:
    model = make_model()
    optimizer = recipe("sgd").optimizer(model.parameters())
    state = Monitor(model, optimizer).state_dict()
    other = make_model(seed=1)
    with pytest.raises(RunError, match="weights are not those"):
        Monitor(other, recipe("sgd").optimizer(other.parameters()), resume=state)
    with pytest.raises(RunError, match="resume with the same"):
        Monitor(model, optimizer, every=2, resume=state)
    with pytest.raises(RunError, match="other laws"):
        Monitor(model, optimizer, find_laws(model)[:2], resume=state)
