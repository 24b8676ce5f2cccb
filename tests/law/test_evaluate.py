"""How laws are evaluated: precision, memory, stacking, reuse. The numbers themselves are in test_quantities."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from cases import EQUAL, SAME_ORDER
from torch import Tensor, nn

from conserved.catalog import Attention, Decoder, GatedLinearUnit, NormalizedLinear, SoftmaxClassifier, TransformerConfig, find_laws, randomize
from conserved.errors import LawError
from conserved.law import Evaluator, Law, LawSet, Term, evaluate, gradient, rate, residual, step_terms, value
from conserved.symmetry import Symmetry

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
KINDS = ("value", "first", "second", "magnitude")
Tensors = dict[str, Tensor]


def decoder(seed: int = 0, **options: object) -> Decoder:
    """A small decoder with every kind of law, at a generic point, in float64."""
    torch.manual_seed(seed)
    config = TransformerConfig(**({"dim": 6, "head_dim": 4, "hidden": 3, "norm": "layer", "position": "learned", "bias": True} | options))  # type: ignore[arg-type]
    block = Decoder(config)
    randomize(block, torch.Generator().manual_seed(seed))
    return block.double()


def parameters(block: nn.Module, dtype: torch.dtype = F64) -> Tensors:
    """Detached copies of a module's parameters."""
    return {name: p.detach().clone().to(dtype) for name, p in block.named_parameters()}


def vectors(params: Tensors, seed: int = 1) -> Tensors:
    """Random tensors of the parameters' shapes and dtypes."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(p.shape, generator=generator, dtype=F64).to(p.dtype) for name, p in params.items()}


def all_forms(laws: LawSet, params: Tensors, x: Tensors, dtype: torch.dtype | None = None) -> dict[str, dict[str, Tensor]]:
    """The four forms of a fresh evaluator."""
    forms = Evaluator(laws, dtype)(params, x, KINDS)
    return {kind: forms.of(kind) for kind in KINDS}


def assert_same(seen: dict[str, Tensor], expected: dict[str, Tensor], bound: float) -> None:
    """Equal names, shapes and, relative to the largest entry, numbers."""
    assert seen.keys() == expected.keys()
    for name, tensor in expected.items():
        assert seen[name].shape == tensor.shape, name
        difference = (seen[name].double() - tensor.double()).abs().max() if tensor.numel() else torch.zeros(())
        assert float(difference) <= bound * (1 + float(tensor.abs().max())), name


@pytest.fixture(scope="module")
def block() -> Decoder:
    """One decoder for the tests that only read it."""
    return decoder()


def test_assert_same_rejects(block: Decoder) -> None:
    """The comparator can fail."""
    laws, params = block.laws(), parameters(block)
    h = value(laws, params)
    name = next(iter(h))
    with pytest.raises(AssertionError):
        assert_same(h | {name: h[name] + 1e-9}, h, SAME_ORDER)
    with pytest.raises(AssertionError):
        assert_same({}, h, SAME_ORDER)


@pytest.mark.parametrize("call", ["value", "rate", "residual", "step_terms", "gradient"])
def test_parameters_are_only_read(block: Decoder, call: str) -> None:
    """Trainable parameters go in; they keep their bits, and no graph comes out."""
    laws = block.laws()
    params = dict(block.named_parameters())
    grads = vectors(params)
    before = {name: p.detach().clone() for name, p in params.items()}
    grads_before = {name: g.clone() for name, g in grads.items()}
    calls: dict[str, Callable[[], object]] = {
        "value": lambda: value(laws, params),
        "rate": lambda: rate(laws, params, grads),
        "residual": lambda: residual(laws, params, grads),
        "step_terms": lambda: step_terms(laws, params, grads),
        "gradient": lambda: gradient(laws[0], params),
    }
    results = calls[call]()
    assert isinstance(results, dict)
    flat = [t for result in results.values() for t in (result if isinstance(result, tuple) else (result,))]
    assert flat
    assert not any(t.requires_grad for t in flat)
    assert all(torch.equal(before[name], p) and p.grad is None and p.requires_grad for name, p in params.items())
    assert all(torch.equal(grads_before[name], g) for name, g in grads.items())


def test_results_do_not_alias_parameters() -> None:
    """Not even the law of single entries: a later change of the parameter leaves its value."""
    law = Law("b", "silent", "", Symmetry.TRANSLATION, (Term("b", (3,), "i"),), ("i",))
    b = torch.ones(3)
    h = value(law, {"b": b})
    b.zero_()
    assert h.tolist() == [1.0] * 3


@pytest.mark.parametrize("dtype", [F64, F32, BF16, F16])
def test_sums_run_in_float32_at_least(block: Decoder, dtype: torch.dtype) -> None:
    """Half-precision tensors give what their float64 copies give, up to float32 rounding; float64 stays float64."""
    laws, params = block.laws(), parameters(block, dtype)
    x = vectors(params)
    seen = all_forms(laws, params, x)
    expected = all_forms(laws, {n: p.double() for n, p in params.items()}, {n: t.double() for n, t in x.items()})
    for kind in KINDS:
        assert {t.dtype for t in seen[kind].values()} == {F64 if dtype == F64 else F32}
        assert_same(seen[kind], expected[kind], EQUAL[dtype])


def test_a_sum_that_half_precision_cannot_hold() -> None:
    """4096 ones and squares of 300: exact here, impossible in bfloat16 and float16."""
    law = Law("n", "scale", "", Symmetry.SCALE, (Term("w", (4096,), "m"),))
    total = Law("s", "sum", "", Symmetry.TRANSLATION, (Term("w", (4096,), "m"),))
    for dtype in (BF16, F16):
        assert value(total, {"w": torch.ones(4096, dtype=dtype)}).tolist() == 4096
        assert value(law, {"w": torch.full((4096,), 256.0, dtype=dtype)}).tolist() == 4096 * 256**2


def test_a_wanted_dtype(block: Decoder) -> None:
    """`Evaluator(dtype=…)` sums float32 tensors in float64."""
    laws, params = block.laws(), parameters(block, F32)
    x = vectors(params)
    wide = {name: p.double() for name, p in params.items()}, {name: t.double() for name, t in x.items()}
    seen, expected = all_forms(laws, params, x, F64), all_forms(laws, *wide)
    for kind in KINDS:
        assert {t.dtype for t in seen[kind].values()} == {F64}
        assert_same(seen[kind], expected[kind], EQUAL[F64])


@pytest.mark.parametrize("dtypes", [(F32, F64), (F64, F32), (BF16, F32), (F32, F16)])
def test_one_law_over_two_dtypes(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    """Terms of different precision are joined, in every symmetry."""
    for symmetry in Symmetry:
        terms = (Term("U", (3, 2), "i m"), Term("V", (4, 3), "o i", -1))
        law = Law("law", "f", "", symmetry, terms, () if symmetry.has_index else ("i",), "i" if symmetry.has_index else None)
        double = vectors({"U": torch.zeros(3, 2, dtype=F64), "V": torch.zeros(4, 3, dtype=F64)})
        params = {name: t.to(dtype) for (name, t), dtype in zip(double.items(), dtypes, strict=True)}
        expected = value(law, {name: t.double() for name, t in params.items()})
        assert_same({"": value(law, params)}, {"": expected}, EQUAL[F32])


def test_layers_of_different_dtypes_are_not_mixed() -> None:
    """Two equal layers, one in float32 and one in float64: the second keeps its precision."""
    law = Law("w", "f", "", Symmetry.SCALE, (Term("W", (3, 2), "i m"),))
    laws = LawSet.of(law.renamed(f"{i}.") for i in range(2))
    exact = vectors({"W": torch.zeros(3, 2, dtype=F64)})["W"]
    h = value(laws, {"0.W": exact.float(), "1.W": exact})
    assert abs(float(h["1.w"]) - float(exact.square().sum())) <= EQUAL[F64] * float(exact.square().sum())


def test_non_contiguous_tensors(block: Decoder) -> None:
    """Transposed storage and strided slices of parameters and gradients."""
    laws, params = block.laws(), parameters(block)
    x = vectors(params)
    expected = all_forms(laws, params, x)
    turned = [{name: t.permute(*reversed(range(t.ndim))).contiguous().permute(*reversed(range(t.ndim))) for name, t in ts.items()} for ts in (params, x)]
    strided = [{name: torch.stack((t, t), -1)[..., 0] for name, t in ts.items()} for ts in (params, x)]
    assert any(not t.is_contiguous() for t in turned[0].values())
    assert not any(t.is_contiguous() for t in strided[0].values() if t.numel() > 1)
    for tensors in (turned, strided):
        seen = all_forms(laws, *tensors)
        for kind in KINDS:
            assert_same(seen[kind], expected[kind], EQUAL[F64])


@pytest.mark.parametrize("missing", ["absent", "none"])
def test_a_missing_gradient_is_zero(block: Decoder, missing: str) -> None:
    """None, or no entry at all, for some or all parameters."""
    laws, params = block.laws(), parameters(block)
    x = vectors(params)
    for without in ([n for n in params if n.endswith(("E", "A", "gamma", "b_Q"))], list(params)):
        zeros = {name: torch.zeros_like(t) if name in without else t for name, t in x.items()}
        fewer = {name: t for name, t in x.items() if name not in without} if missing == "absent" else x | dict.fromkeys(without)
        seen, expected = all_forms(laws, params, fewer), all_forms(laws, params, zeros)  # type: ignore[arg-type]
        for kind in KINDS:
            assert_same(seen[kind], expected[kind], SAME_ORDER)


def test_names_that_no_law_uses_are_ignored(block: Decoder) -> None:
    """Also if their tensors are broken."""
    laws, params = block.laws(), parameters(block)
    x = vectors(params)
    junk = {"junk": torch.tensor(float("nan"))}
    assert_same(residual(laws, params | junk, x | junk), residual(laws, params, x), 0.0)


def test_a_set_equals_its_laws_one_by_one(block: Decoder) -> None:
    """Shared passes over a parameter change nothing."""
    laws, params = block.laws(), parameters(block)
    x = vectors(params)
    together = all_forms(laws, params, x)
    for law in laws:
        alone = all_forms(LawSet((law,)), params, x)
        for kind in KINDS:
            assert_same(alone[kind], {law.name: together[kind][law.name]}, SAME_ORDER)
        assert torch.equal(value(law, params), alone["value"][law.name])


@pytest.mark.parametrize("block_of", [lambda: Attention(3, 2, 2), lambda: GatedLinearUnit(3, 4, 3, bias=True), lambda: NormalizedLinear(3, (2, 1))])
def test_many_equal_layers_equal_one_by_one(block_of: Callable[[], nn.Module]) -> None:
    """Forty stacked layers, with gradients missing in some of them."""
    model = nn.ModuleList([block_of() for _ in range(40)])
    randomize(model, torch.Generator().manual_seed(3))
    laws, params = find_laws(model), parameters(model)
    x = {name: t for name, t in vectors(params).items() if not name.startswith("7.")}
    together = all_forms(laws, params, x)
    assert len(laws) % 40 == 0
    for law in laws[:: len(laws) // 20]:
        alone = all_forms(LawSet((law,)), params, x)
        for kind in KINDS:
            assert_same(alone[kind], {law.name: together[kind][law.name]}, SAME_ORDER)


def test_layers_too_large_to_stack() -> None:
    """Parameters beyond the stacking limit are read in place, in runs or one by one."""
    law = Law("w", "f", "", Symmetry.RESCALE, (Term("W", (20, 700), "i m"), Term("V", (3, 20), "o i", -1)), index="i")
    laws = LawSet.of(law.renamed(f"{i}.") for i in range(5))
    params = {f"{i}.{name}": torch.full(shape, float(i + 1), dtype=F64) for i in range(5) for name, shape in (("W", (20, 700)), ("V", (3, 20)))}
    for i in range(5):
        assert value(laws, params)[f"{i}.w"].tolist() == [(700 - 3) * (i + 1) ** 2] * 20


def test_rows_go_to_their_own_law() -> None:
    """Layers whose laws are listed in another order than their parameters."""
    law = Law("w", "f", "", Symmetry.GENERAL_LINEAR, (Term("W", (2, 3), "i m"), Term("V", (4, 2), "o i", -1)), index="i")
    laws = LawSet.of(law.renamed(f"{i}.") for i in (2, 0, 3, 1))
    base = vectors({f"{i}.{name}": torch.zeros(shape, dtype=F64) for i in range(4) for name, shape in (("W", (2, 3)), ("V", (4, 2)))})
    seen = value(laws, base)
    for i in range(4):
        expected = base[f"{i}.W"] @ base[f"{i}.W"].T - base[f"{i}.V"].T @ base[f"{i}.V"]
        assert_same({"": seen[f"{i}.w"]}, {"": expected}, EQUAL[F64])


def test_one_tied_parameter_in_the_laws_of_two_layers() -> None:
    """A weight that two laws of equal form share counts in both."""
    law = Law("w", "f", "", Symmetry.RESCALE, (Term("W", (2, 3), "i m"), Term("V", (4, 2), "o i", -1)), index="i")
    laws = LawSet((law.renamed("0.", {"0.W": "W"}), law.renamed("1.", {"1.W": "W"})))
    params = {"W": torch.ones(2, 3), "0.V": torch.ones(4, 2), "1.V": torch.zeros(4, 2)}
    assert {name: h.tolist() for name, h in value(laws, params).items()} == {"0.w": [-1.0, -1.0], "1.w": [3.0, 3.0]}


def test_an_evaluator_leaks_nothing_between_calls() -> None:
    """Other tensors, dtypes, kinds and missing gradients between the calls: each call gives what a fresh evaluator gives."""
    block = decoder(qk_norm=True, norm="rms", position="rope", norm_offset=1.0)
    laws = block.laws()
    evaluator = Evaluator(laws)
    first, second = parameters(block), parameters(decoder(5, qk_norm=True, norm="rms", position="rope", norm_offset=1.0))
    x = vectors(first)
    calls: list[tuple[Tensors, Tensors | None, tuple[str, ...]]] = [
        (first, x, KINDS),
        (second, vectors(second, 9), KINDS),
        (first, None, ("value",)),
        (first, {}, KINDS),
        (parameters(block, F32), vectors(parameters(block, F32)), KINDS),
        (parameters(block, F16), {n: t for n, t in vectors(parameters(block, F16)).items() if "attention" in n}, KINDS),
        (second, {n: t for n, t in x.items() if "mlp" in n}, ("magnitude",)),
        (second, x, ("first", "second")),
        (first, x, KINDS),
    ]
    for params, vector, kinds in calls:
        seen, fresh = evaluator(params, vector, kinds), Evaluator(laws)(params, vector, kinds)
        for kind in kinds:
            assert_same(seen.of(kind), fresh.of(kind), 0.0)


def test_results_of_the_functions_outlive_later_calls(block: Decoder) -> None:
    """Only the evaluator overwrites its tensors."""
    laws, params = block.laws(), parameters(block)
    h = value(laws, params)
    kept = {name: t.clone() for name, t in h.items()}
    value(laws, {name: t + 1 for name, t in params.items()})
    assert_same(h, kept, 0.0)


def test_a_form_without_a_second_vector() -> None:
    """Refused with what to pass."""
    laws = SoftmaxClassifier(3, 2).laws()
    params = dict(SoftmaxClassifier(3, 2).named_parameters())
    for kind in ("first", "second", "magnitude"):
        with pytest.raises(LawError, match="need a second vector; pass gradients or an update as x"):
            Evaluator(laws)(params, wanted=("value", kind))


def test_no_laws() -> None:
    """An empty set has empty results."""
    assert value(LawSet(), {}) == {}
    assert residual(LawSet(), {}, {}) == {}


def test_an_offset_belongs_to_the_parameter_only() -> None:
    """θ + o enters the value and the rate, the update and its square do not get it."""
    law = Law("g", "gain", "", Symmetry.RESCALE, (Term("g", (2,), "i", 1, 1.0),), index="i")
    params, update = {"g": torch.tensor([1.0, -1.0])}, {"g": torch.tensor([0.5, 0.5])}
    assert value(law, params).tolist() == [4.0, 0.0]
    assert rate(law, params, update).tolist() == [2.0, 0.0]
    first, second = step_terms(law, params, update)
    assert (first.tolist(), second.tolist()) == ([2.0, 0.0], [0.25, 0.25])
    assert gradient(law, params)["g"].tolist() == [4.0, 0.0]
    shifted = replace(law, symmetry=Symmetry.TRANSLATION, batch=("i",), index=None)
    assert value(shifted, params).tolist() == [2.0, 0.0]
    assert rate(shifted, params, update).tolist() == [0.5, 0.5]


def test_one_parameter_with_and_without_offset() -> None:
    """Laws that read the same gain in two ways do not disturb each other."""
    plain = Law("plain", "gain", "", Symmetry.RESCALE, (Term("g", (2,), "i"),), index="i")
    moved = Law("moved", "gain", "", Symmetry.RESCALE, (Term("g", (2,), "i", 1, 1.0),), index="i")
    h = value(LawSet((plain, moved)), {"g": torch.tensor([1.0, 2.0])})
    assert (h["plain"].tolist(), h["moved"].tolist()) == ([1.0, 4.0], [4.0, 9.0])


@pytest.mark.parametrize("most", [1, 7, 12, 1 << 20])
def test_blocks_of_rows_change_nothing(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large parameters are read in blocks of rows where all their laws sum over rows; uneven blocks, one row, and none."""
    monkeypatch.setitem(evaluate._STACK, "cpu", 1)
    model = decoder(vocab=11)
    params = parameters(model)
    x = vectors(params)
    monkeypatch.setitem(evaluate._BLOCK, "cpu", 1 << 20)
    expected = all_forms(model.laws(), params, x)
    monkeypatch.setitem(evaluate._BLOCK, "cpu", most)
    plan = Evaluator(model.laws()).plan
    several = [leg.parameters for leg in plan.legs if len(list(evaluate._blocks(leg, params[leg.parameters[0]]))) > 1]
    assert bool(several) == (most < 1 << 20)
    seen = all_forms(model.laws(), params, x)
    for kind in KINDS:
        assert_same(seen[kind], expected[kind], EQUAL[F64])
