"""The case table: named blocks of the catalogue with their seeds, degenerate sizes first.

A case holds a thunk, so nothing is built, drawn or imported from torch's generators at collection time.
`sample(case, dtype)` builds the block at a generic point and takes one backward pass of a random linear
function of its outputs. Samples are cached and must only be read.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from conserved.catalog import (
    Attention,
    BatchNormBlock,
    Block,
    ConvolutionBlock,
    Decoder,
    FeedForward,
    GatedLinearUnit,
    InputConvexNetwork,
    LayerScale,
    LinearNetwork,
    LoRA,
    MatrixFactorization,
    MixtureOfExperts,
    NormalizedLinear,
    ReLUNetwork,
    SoftmaxClassifier,
    TransformerConfig,
    VisionTransformer,
    randomize,
)
from conserved.catalog.activation import ACTIVATIONS
from conserved.law import Law, LawSet, residual, worst

# --- tolerances that are not residuals (the residual's own table is conserved.tolerance) ---

APPROXIMATE_PER_EPS = 1e3
"""An approximate law may have a residual of eps times this (1/rms² of what is normalised, times cancellation)."""

EQUAL = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-5, torch.float16: 1e-5}
"""Relative difference of two ways to compute one number; half precision is summed in float32."""

SAME_ORDER = 1e-15
"""Relative difference of two evaluations that run the same sums, possibly in another order."""

FLOW_CONSTANT = 1e-8
"""Largest relative drift of a law along an integrated gradient flow."""

FLOW_DRIFT = 1e-3
"""Smallest relative drift of a wrong law along the same flow."""

RANK_GAP = 1e-10
"""Relative singular values below this are zero; those of a generic point lie above 1e-3, rounding below 1e-14."""

IN_PROPORTION = 1.2
"""Factor by which a residual of first order in eps may differ from being proportional to it, over two decades."""

CONTROL_DRAWS = 24
"""Generic points at which a wrong law may be rejected; one scalar that sums many terms can be small by chance at a few."""

DTYPES = (torch.float64, torch.float32)


# --- cases ---


@dataclass(frozen=True)
class Case:
    """A named block.

    Args:
        name: readable test id.
        build: thunk that builds the block.
        batch: number of examples in the sample.
        seed: of the block's values, the data and the cotangent.
    """

    name: str
    build: Callable[[], Block]
    batch: int = 8
    seed: int = 1


@dataclass(frozen=True, eq=False)
class Sample:
    """A block at a generic point, with the gradients of one backward pass."""

    block: Block
    laws: LawSet
    params: Mapping[str, Tensor]
    grads: Mapping[str, Tensor]
    inputs: tuple[Tensor, ...] = field(repr=False)


def build_at_generic_point(case: Case, dtype: torch.dtype = torch.float64, draw: int = 0) -> tuple[Block, torch.Generator]:
    """The case's block with random parameters, and the generator to draw its data from."""
    seed = case.seed + 1000 * draw
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        block = case.build()
    generator = torch.Generator().manual_seed(seed)
    randomize(block, generator)
    return block.to(dtype), generator


def draw_inputs(block: Block, batch: int, generator: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Random inputs in the dtype, token numbers as they are."""
    return tuple(x.to(dtype) if x.is_floating_point() else x for x in block.example(batch, generator))


def pull_back(block: Block, inputs: tuple[Tensor, ...], generator: torch.Generator) -> dict[str, Tensor]:
    """Gradients of a random linear function of the outputs; parameters that it does not reach are left out."""
    outputs = block(*inputs)
    parts = outputs if isinstance(outputs, tuple) else (outputs,)
    loss = sum(((part * torch.randn(part.shape, generator=generator, dtype=torch.float64).to(part.dtype)).sum() for part in parts), start=torch.zeros(()))
    trained = {name: p for name, p in block.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    return {name: grad for name, grad in zip(trained, grads, strict=True) if grad is not None}


@cache
def sample(case: Case, dtype: torch.dtype, draw: int = 0) -> Sample:
    """The case at a generic point (another one for each draw), with one backward pass; read only."""
    block, generator = build_at_generic_point(case, dtype, draw)
    inputs = draw_inputs(block, case.batch, generator, dtype)
    grads = pull_back(block, inputs, generator)
    return Sample(block, block.laws(), dict(block.named_parameters()), grads, inputs)


def worst_residual(case: Case, law: Law, dtype: torch.dtype, draw: int = 0) -> float | None:
    """The one test of a law, right or wrong: its largest residual at a generic point; None if nothing was evaluated."""
    at = sample(case, dtype, draw)
    return worst(residual(law, at.params, at.grads))


def eps_of(block: Block) -> float:
    """The eps that makes some of a block's laws approximate; 0 if it has none."""
    config = getattr(block, "config", None)
    return float(getattr(block, "eps", 0.0) if config is None else config.eps)


def _label(options: Mapping[str, Any]) -> str:
    parts = []
    for key, value in options.items():
        if value is True:
            parts.append(key)
        elif value is not None and value is not False:
            shown = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
            parts.append(f"{key}={shown}")
    return ",".join(parts) or "default"


def _decoder(**options: Any) -> Block:
    return Decoder(TransformerConfig(**options))


def _vision(**options: Any) -> Block:
    return VisionTransformer(TransformerConfig(**options))


def _cases(kind: str, build: Callable[..., Block], table: Iterable[Mapping[str, Any]], **more: Any) -> list[Case]:
    return [Case(f"{kind}[{_label(options)}]", partial(build, **options), **more) for options in table]


def _grid(**choices: Iterable[Any]) -> list[dict[str, Any]]:
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]


LINEAR = _cases(
    "linear",
    LinearNetwork,
    [
        {"dims": (3, 2)},  # no hidden layer: no laws
        {"dims": (3, 2), "bias": True},
        {"dims": (1, 1, 1)},
        {"dims": (1, 1, 2), "bias": True},
        {"dims": (2, 7, 3)},  # hidden wider than input and output together
        {"dims": (2, 7, 3), "bias": True},
        {"dims": (3, 1, 2)},
        {"dims": (2, 5, 2)},
        {"dims": (3, 2, 3)},
        {"dims": (4, 3, 5, 2)},
        {"dims": (4, 3, 5, 2), "bias": True},
        {"dims": (1, 3, 5, 1)},  # two rank-deficient layers side by side
        {"dims": (3, 4, 4, 4, 2)},  # layers of equal shape, which the evaluation stacks
    ],
)

RELU = _cases(
    "relu",
    ReLUNetwork,
    [
        {"dims": (3, 2)},
        {"dims": (1, 1, 1)},
        {"dims": (1, 1, 2), "bias": True},
        {"dims": (3, 5, 4, 2)},
        {"dims": (3, 5, 4, 2), "bias": True},
        {"dims": (3, 5, 4, 2), "slope": 0.1},
        {"dims": (3, 5, 4, 2), "slope": 0.1, "bias": True},
        {"dims": (4, 3, 3, 3, 2), "bias": True},
    ],
    batch=32,
    seed=9,  # no unit is dead on all the data
)

FACTORIZATION = _cases(
    "nmf",
    MatrixFactorization,
    [
        {"rows": 1, "columns": 1, "rank": 1},
        {"rows": 1, "columns": 2, "rank": 5},  # rank above rows and columns together: the matrix law is rank deficient
        {"rows": 3, "columns": 2, "rank": 1},
        {"rows": 4, "columns": 3, "rank": 2},
        {"rows": 2, "columns": 5, "rank": 4},
    ],
)

INPUT_CONVEX = _cases(
    "icnn",
    InputConvexNetwork,
    [
        {"dim": 1, "hidden": 1, "out": 1, "bias": False},
        {"dim": 1, "hidden": 1, "out": 1, "bias": True},
        *_grid(dim=(3,), hidden=(4,), out=(1, 2), bias=(False, True)),
        {"dim": 2, "hidden": 6, "out": 1, "bias": True},
    ],
    batch=32,
)

CONVOLUTION = _cases(
    "conv",
    ConvolutionBlock,
    [{"channels": 1, "hidden": 1, "kernel": 1, "bias": False}, *_grid(channels=(2,), hidden=(3,), kernel=(3,), bias=(False, True), skip=(False, True))],
    batch=4,
)

FEED_FORWARD = _cases(
    "ffn",
    FeedForward,
    [
        {"dim": 1, "hidden": 1, "out": 1, "activation": "gelu"},
        {"dim": 1, "hidden": 1, "out": 1, "activation": "relu"},
        *_grid(dim=(3,), hidden=(4,), out=(2,), activation=tuple(ACTIVATIONS), bias=(False, True)),
        {"dim": 2, "hidden": 6, "out": 1, "activation": "identity"},
    ],
    batch=32,
)

GLU = _cases(
    "glu",
    GatedLinearUnit,
    _grid(dim=(1,), hidden=(1,), out=(1,), gate=("silu", "identity"), bias=(False, True))
    + _grid(dim=(3,), hidden=(4,), out=(2,), gate=("silu", "gelu", "gelu_tanh", "relu", "leaky_relu", "identity", "tanh", "sigmoid"), bias=(False, True)),
    batch=32,
)

_SMALL_HEADS = [
    {"dim": 1, "heads": 1, "head_dim": 1},
    {"dim": 1, "heads": 1, "head_dim": 2, "position": "rope"},
    {"dim": 2, "heads": 1, "head_dim": 5},  # head_dim > 2 dim: the matrix laws are rank deficient
    {"dim": 2, "heads": 2, "head_dim": 5, "bias": True},
    {"dim": 2, "heads": 2, "head_dim": 7, "kv_heads": 1},
    {"dim": 3, "heads": 1, "head_dim": 2, "position": "rope"},
    {"dim": 3, "heads": 2, "head_dim": 2, "position": "rope", "interleaved": True},
    {"dim": 5, "heads": 1, "head_dim": 4},
]

ATTENTION = _cases("mha", Attention, _SMALL_HEADS) + _cases(
    "mha",
    Attention,
    _grid(dim=(5,), heads=(2,), head_dim=(4,), position=("none", "sinusoidal", "learned", "alibi"), causal=(False, True), bias=(False, True))
    + _grid(dim=(5,), heads=(2,), head_dim=(3,), soft_cap=(2.0,), position=("none", "alibi"), bias=(False, True))
    + [{"dim": 5, "heads": 2, "head_dim": 4, "position": "rope", "soft_cap": 2.0, "bias": True}],
)

ROPE = _cases(
    "rope",
    Attention,
    [
        *_grid(dim=(5,), heads=(2,), head_dim=(6,), position=("rope",), rotary_dim=(None, 2, 4), interleaved=(False, True), bias=(False, True)),
        {"dim": 5, "heads": 2, "head_dim": 4, "position": "rope", "causal": True},
    ],
)

GROUPED = _cases(
    "gqa",
    Attention,
    [
        *_grid(dim=(5,), heads=(4,), kv_heads=(1, 2), head_dim=(4,), position=("none", "rope"), bias=(False, True)),
        {"dim": 5, "heads": 3, "kv_heads": 1, "head_dim": 6, "position": "rope", "rotary_dim": 4, "interleaved": True},
        {"dim": 3, "heads": 4, "kv_heads": 2, "head_dim": 4, "causal": True, "position": "alibi"},
        {"dim": 5, "heads": 6, "kv_heads": 2, "head_dim": 2, "position": "rope"},
    ],
)

QK_NORM = _cases(
    "qk_norm",
    Attention,
    _grid(dim=(5,), heads=(2,), head_dim=(4,), qk_norm=(True,), eps=(0.0, 1e-6), position=("none", "rope"), bias=(False, True))
    + _grid(
        dim=(5,), heads=(4,), kv_heads=(2,), head_dim=(6,), qk_norm=(True,), eps=(0.0, 1e-6), position=("rope",), rotary_dim=(4,), interleaved=(False, True)
    )
    + [
        {"dim": 5, "heads": 1, "head_dim": 2, "qk_norm": True, "eps": 0.0, "position": "rope"},
        {"dim": 5, "heads": 3, "kv_heads": 1, "head_dim": 3, "qk_norm": True, "eps": 0.0, "soft_cap": 2.0},
    ],
)

EXPERTS = _cases(
    "moe",
    MixtureOfExperts,
    [
        {"dim": 1, "hidden": 1, "out": 1, "experts": 2},
        {"dim": 2, "hidden": 3, "out": 1, "experts": 1, "gate": "sigmoid"},
    ],
    batch=24,
) + _cases(
    "moe",
    MixtureOfExperts,
    _grid(
        dim=(3,),
        hidden=(4,),
        out=(2,),
        experts=(3,),
        top_k=(1, 2, None),
        gate=("softmax", "topk_softmax", "sigmoid"),
        renormalize=(False, True),
        router_bias=(False, True),
        load_balancing=(False, True),
        z_loss=(False, True),
    ),
    batch=24,
)

NORM = _cases(
    "norm",
    NormalizedLinear,
    [{"dim": 3, "outs": (1,)}, {"dim": 4, "outs": (3,), "kind": "layer"}, *_grid(dim=(4,), outs=((3, 2),), kind=("rms", "layer"), offset=(0.0, 1.0))],
)

LAYER_SCALE = _cases("layer_scale", LayerScale, [{"dim": 1, "hidden": 1}, {"dim": 4, "hidden": 3}, {"dim": 2, "hidden": 5}])

BATCH_NORM = _cases(
    "batch_norm",
    BatchNormBlock,
    [{"channels": 1, "hidden": 1, "eps": 0.0}, *_grid(channels=(2,), hidden=(3,), kernel=(1, 3), eps=(0.0, 1e-5))],
    batch=4,
)

LORA = _cases(
    "lora", LoRA, [{"dim": 5, "out": 4, "rank": 1}, {"dim": 2, "out": 3, "rank": 7}, {"dim": 3, "out": 2, "rank": 4}, {"dim": 5, "out": 4, "rank": 2}]
)

CLASSIFIER = _cases("classifier", SoftmaxClassifier, [{"features": 1, "classes": 2, "bias": False}, *_grid(features=(4,), classes=(3,), bias=(False, True))])

_TINY = {"vocab": 5, "dim": 6, "heads": 2, "head_dim": 4, "hidden": 3, "tokens": 5, "layers": 1}
_GPT = {"norm": "layer", "position": "learned", "mlp": ("gelu",), "bias": True}

DECODER = _cases(
    "decoder",
    _decoder,
    [
        _TINY | options
        for options in [
            {"kv_heads": 1},
            {"kv_heads": 1, "eps": 0.0},
            _GPT,
            _GPT | {"eps": 0.0, "layers": 2},
            _GPT | {"tied": True, "eps": 0.0},
            _GPT | {"layer_scale": True, "eps": 0.0},
            {"tied": True, "eps": 0.0},
            {"qk_norm": True, "kv_heads": 1},
            {"qk_norm": True, "eps": 0.0, "rotary_dim": 2},
            {"layer_scale": True, "eps": 0.0},
            {"mlp": ("swiglu", "moe"), "layers": 2},
            {"mlp": ("moe",), "gate": "sigmoid", "top_k": 2, "bias": True, "eps": 0.0},
            {"mlp": ("moe",), "gate": "topk_softmax", "top_k": 2, "norm": "layer"},
            {"mlp": ("geglu", "bilinear"), "layers": 2, "bias": True, "eps": 0.0},
            {"mlp": ("relu",), "bias": True, "norm": "layer", "position": "alibi", "eps": 0.0},
            {"norm_offset": 1.0, "eps": 0.0},
            {"norm_offset": 1.0, "norm": "layer", "tied": True, "eps": 0.0, "position": "learned"},
            {"soft_cap": 3.0, "position": "none", "bias": True},
            {"layers": 4, "hidden": 2},  # equal layers, which the evaluation stacks
        ]
    ]
    + [_TINY | o for o in _grid(norm=("rms", "layer"), position=("none", "sinusoidal", "learned", "rope", "alibi"), tied=(False, True))],
    batch=16,
)

_VIT = {"dim": 6, "heads": 2, "head_dim": 4, "hidden": 3, "layers": 1, "image": 4, "patch": 2, "channels": 2, "classes": 4}

VISION = _cases(
    "vit",
    _vision,
    [_VIT | o for o in _grid(norm=("rms", "layer"), position=("none", "sinusoidal", "learned"), mlp=(("gelu",),), bias=(True,), eps=(0.0,))]
    + [
        _VIT | _GPT | {"layer_scale": True},
        _VIT | _GPT | {"layer_scale": True, "eps": 0.0, "layers": 2},
        _VIT | {"norm": "layer", "position": "rope", "mlp": ("moe", "swiglu"), "layers": 2},
        _VIT | {"image": 4, "patch": 4, "norm": "layer", "position": "learned", "eps": 0.0},  # one patch beside the class token
    ],
    batch=8,
)

CASES: tuple[Case, ...] = (
    *LINEAR, *FACTORIZATION, *RELU, *INPUT_CONVEX, *CONVOLUTION, *FEED_FORWARD, *GLU, *ATTENTION, *ROPE, *GROUPED, *QK_NORM, *EXPERTS,
    *NORM, *LAYER_SCALE, *BATCH_NORM, *LORA, *CLASSIFIER, *DECODER, *VISION,
)  # fmt: skip
