"""What `make_block` and the blocks refuse, word for word, and what they take."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from conserved.catalog import (
    BLOCKS,
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
    make_block,
    randomize,
)
from conserved.catalog.registry import block_options
from conserved.errors import ConfigurationError, ConservedError, UnknownNameError

SIZES: list[tuple[str, Callable[..., Block], str, str]] = [
    ("linear", lambda n: LinearNetwork((3, n, 2)), "linear", r"dims\[1\]"),
    ("relu", lambda n: ReLUNetwork((n, 2)), "relu", r"dims\[0\]"),
    *[("nmf", partial(lambda o, n: MatrixFactorization(**{o: n}), option), "nmf", option) for option in ("rows", "columns", "rank")],
    *[("icnn", partial(lambda o, n: InputConvexNetwork(**{o: n}), option), "icnn", option) for option in ("dim", "hidden", "out")],
    *[("conv", partial(lambda o, n: ConvolutionBlock(**{o: n}), option), "conv", option) for option in ("channels", "hidden", "kernel")],
    *[("ffn", partial(lambda o, n: FeedForward(**{o: n}), option), "feedforward", option) for option in ("dim", "hidden", "out")],
    *[("glu", partial(lambda o, n: GatedLinearUnit(**{o: n}), option), "glu", option) for option in ("dim", "hidden", "out")],
    *[
        ("mha", partial(lambda o, n: Attention(**{o: n}), option), "attention", option)
        for option in ("dim", "heads", "head_dim", "kv_heads", "rotary_dim", "tokens")
    ],
    *[("moe", partial(lambda o, n: MixtureOfExperts(**{o: n}), option), "moe", option) for option in ("dim", "hidden", "out", "experts", "top_k")],
    ("norm", NormalizedLinear, "norm", "dim"),
    ("norm", lambda n: NormalizedLinear(3, (2, n)), "norm", r"outs\[1\]"),
    *[("layer_scale", partial(lambda o, n: LayerScale(**{o: n}), option), "layer_scale", option) for option in ("dim", "hidden")],
    *[("batch_norm", partial(lambda o, n: BatchNormBlock(**{o: n}), option), "batch_norm", option) for option in ("channels", "hidden", "kernel")],
    *[("lora", partial(lambda o, n: LoRA(**{o: n}), option), "lora", option) for option in ("dim", "out", "rank")],
    *[("classifier", partial(lambda o, n: SoftmaxClassifier(**{o: n}), option), "classifier", option) for option in ("features", "classes")],
    *[
        ("transformer", partial(lambda o, n: Decoder(TransformerConfig(**{o: n})), option), "transformer", option)
        for option in ("dim", "layers", "heads", "tokens", "vocab", "channels", "image", "patch", "classes")
    ],
]


@pytest.mark.parametrize("size", [0, -2])
@pytest.mark.parametrize(("build", "block", "option"), [row[1:] for row in SIZES], ids=[f"{row[0]}-{row[3]}" for row in SIZES])
def test_sizes_below_one(build: Callable[..., Block], block: str, option: str, size: int) -> None:
    """Block, option and value are named."""
    with pytest.raises(ConfigurationError, match=f"^{block}: {option}={size}; give a size of at least 1$"):
        build(size)


@pytest.mark.parametrize(("build", "block", "option"), [row[1:] for row in SIZES], ids=[f"{row[0]}-{row[3]}" for row in SIZES])
def test_sizes_that_are_no_integers(build: Callable[..., Block], block: str, option: str) -> None:
    """A fraction or a text is no size, whatever it would be compared with."""
    for size in (2.5, 2.0, "2"):
        with pytest.raises(ConfigurationError, match=f"^{block}: {option}="):
            build(size)


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: LinearNetwork((3,)), r"linear: dims=\(3,\); give at least an input and an output width"),
    (lambda: LinearNetwork(()), r"linear: dims=\(\); give at least"),
    (lambda: ReLUNetwork((3,)), r"relu: dims=\(3,\); give at least an input and an output width"),
    (lambda: FeedForward(activation="swish"), "feedforward: activation='swish' is unknown; choose one of gelu, gelu_tanh, silu, tanh"),
    (lambda: GatedLinearUnit(gate="swiglu"), "glu: activation='swiglu' is unknown; choose one of"),
    (lambda: Attention(position="absolute"), "attention: position='absolute' is unknown; choose one of none, sinusoidal, learned, rope, alibi"),
    (lambda: Attention(heads=4, kv_heads=3), "attention: kv_heads=3 does not divide heads=4; give a divisor"),
    (lambda: Attention(heads=2, kv_heads=4), "attention: kv_heads=4 does not divide heads=2"),
    (lambda: Attention(head_dim=3, position="rope"), "attention: 3 rotary entries in a head of 3; give an even number up to head_dim"),
    (lambda: Attention(head_dim=4, position="rope", rotary_dim=3), "attention: 3 rotary entries in a head of 4"),
    (lambda: Attention(head_dim=4, position="rope", rotary_dim=6), "attention: 6 rotary entries in a head of 4"),
    (lambda: Attention(soft_cap=0.0), "attention: soft_cap=0.0; give a positive cap or None"),
    (lambda: Attention(soft_cap=-1.0), "attention: soft_cap=-1.0; give a positive cap or None"),
    (lambda: MixtureOfExperts(experts=2, top_k=3), "moe: top_k=3 exceeds experts=2; give at most 2"),
    (lambda: MixtureOfExperts(gate="tanh"), "moe: gate='tanh' is unknown; choose one of softmax, topk_softmax, sigmoid"),
    (lambda: NormalizedLinear(kind="batch"), "norm: kind='batch' is unknown; choose one of rms, layer"),
    (lambda: BatchNormBlock(eps=-1e-5), "batch_norm: eps=-1e-05; give a finite number of at least 0"),
    (lambda: Attention(eps=float("nan")), "attention: eps=nan; give a finite number of at least 0"),
    (lambda: Attention(soft_cap=float("nan")), "attention: soft_cap=nan; give a positive cap or None"),
    (lambda: ReLUNetwork((3, 2, 2), slope=float("inf")), "relu: slope=inf; give a finite number"),
    (lambda: TransformerConfig(norm_offset=float("nan")), "transformer: norm_offset=nan; give a finite number"),
    (lambda: NormalizedLinear(3, ()), r"norm: outs=\(\); give at least one"),
    (lambda: ConvolutionBlock(kernel=2, skip=True), "conv: kernel=2; give an odd"),
    (lambda: TransformerConfig(mlp=()), r"transformer: mlp=\(\); name at least one of swiglu, geglu, reglu, bilinear, gelu, silu, tanh, relu, moe"),
    (lambda: TransformerConfig(mlp=("swiglu", "glu")), "transformer: mlp='glu' is unknown; choose one of swiglu"),
    (lambda: TransformerConfig(dim=6, heads=4), "transformer: heads=4 does not divide dim=6; give head_dim"),
    (lambda: TransformerConfig(image=8, patch=3), "transformer: patch=3 does not divide image=8; give a divisor"),
    (lambda: TransformerConfig(position="absolute"), "position='absolute' is unknown; choose one of none, sinusoidal, learned, rope, alibi"),
    (lambda: Decoder(TransformerConfig(norm="batch")), "norm: kind='batch' is unknown"),
    (lambda: Decoder(TransformerConfig(hidden=0)), "hidden=0; give a size of at least 1"),
    (lambda: Decoder(TransformerConfig(kv_heads=3)), "attention: kv_heads=3 does not divide heads=2"),
    (lambda: Decoder(TransformerConfig(mlp=("moe",), top_k=5)), "moe: top_k=5 exceeds experts=3"),
    (lambda: VisionTransformer(TransformerConfig(dim=6, heads=2, position="rope")), "attention: 3 rotary entries in a head of 3"),
]


@pytest.mark.parametrize(("build", "message"), REFUSED, ids=[message[:50] for _, message in REFUSED])
def test_contradictions(build: Callable[[], object], message: str) -> None:
    """Got, where, and what to give instead."""
    with pytest.raises(ConfigurationError, match=message) as caught:
        build()
    assert isinstance(caught.value, ConservedError)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", BLOCKS)
def test_every_registered_block_runs(name: str) -> None:
    """Defaults build a block whose example runs; its listed options are its arguments."""
    block = make_block(name)
    generator = torch.Generator().manual_seed(0)
    randomize(block, generator)
    block.double()
    outputs = block(*block.example(2, generator))
    assert torch.isfinite(outputs[0] if isinstance(outputs, tuple) else outputs).all()
    options = block_options(name)
    assert options
    rebuilt = make_block(name, options)
    assert rebuilt.laws() == block.laws()
    assert make_block(name, {}).laws() == block.laws()


@pytest.mark.parametrize(
    ("name", "options", "check"),
    [
        ("nmf", {"rank": 1}, lambda b: b.laws().independent_count == 1),
        ("icnn", {"bias": False}, lambda b: b.b is None),
        ("swiglu", {"hidden": 7}, lambda b: b.laws().independent_count == 7),
        ("swiglu", {"gate": "identity"}, lambda b: b.laws().independent_count == 8),  # a default that the name fixes
        ("leaky-relu", {"slope": 0.5}, lambda b: b.slope * 2 == 1),
        ("linear", {"dims": [3, 2, 3]}, lambda b: b.laws().independent_count == 3),  # a list, as JSON gives it
        ("decoder", {"mlp": ["swiglu", "moe"], "layers": 2}, lambda b: {"glu", "expert"} <= set(b.laws().families)),
        ("layernorm-stream", {"tied": True}, lambda b: b.U is None),
        ("vit", {"norm": "rms"}, lambda b: "stream_mean" not in b.laws().families),
    ],
)
def test_options_replace_defaults(name: str, options: dict[str, Any], check: Callable[[Any], bool]) -> None:
    """Also those that the name sets."""
    assert check(make_block(name, options))


def test_an_unknown_block() -> None:
    """All names are listed."""
    with pytest.raises(UnknownNameError, match=r"no catalogue block is named 'mlp'; choose one of linear, relu, leaky-relu, .*, vit") as caught:
        make_block("mlp")
    assert all(name in str(caught.value) for name in BLOCKS)


@pytest.mark.parametrize(
    ("name", "option", "known"), [("swiglu", "width", "dim, hidden, out, gate, bias"), ("decoder", "classes_", "dim, layers"), ("vit", "depth", "dim")]
)
def test_an_unknown_option(name: str, option: str, known: str) -> None:
    """All options are listed."""
    with pytest.raises(UnknownNameError, match=f"block '{name}' has no option '{option}'; it takes {known}"):
        make_block(name, {option: 3})


WRONG_TYPES = [
    ("linear", {"dims": 3}),
    ("linear", {"dims": "abc"}),
    ("linear", {"dims": None}),
    ("relu", {"dims": [3, "4", 2]}),
    ("relu", {"slope": "steep"}),
    ("nmf", {"rank": None}),
    ("icnn", {"bias": 2}),
    ("swiglu", {"hidden": "many"}),
    ("swiglu", {"hidden": None}),
    ("swiglu", {"gate": 3}),
    ("swiglu", {"gate": ["silu"]}),
    ("swiglu", {"bias": "no"}),
    ("mha", {"causal": 1.5}),
    ("mha", {"position": None}),
    ("mha", {"soft_cap": "high"}),
    ("qk-norm", {"eps": "small"}),
    ("moe", {"top_k": 1.5}),
    ("moe", {"renormalize": "yes"}),
    ("decoder", {"layers": 1.5}),
    ("decoder", {"mlp": 3}),
    ("decoder", {"eps": "small"}),
    ("decoder", {"tied": "no"}),
    ("rmsnorm", {"outs": 3}),
    ("rmsnorm", {"offset": "one"}),
    ("batch-norm", {"eps": None}),
]


@pytest.mark.parametrize(("name", "options"), WRONG_TYPES, ids=[f"{name}-{options}" for name, options in WRONG_TYPES])
def test_a_wrong_type(name: str, options: dict[str, Any]) -> None:
    """Refused when the block is built, in one line that names the block's option, never a bare TypeError later."""
    with pytest.raises(ConfigurationError) as caught:
        make_block(name, options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["eps", "offset"])
def test_numbers_may_be_integers(kind: str) -> None:
    """1 is as good as 1.0."""
    block = make_block("rmsnorm", {"offset": 1}) if kind == "offset" else make_block("qk-norm", {"eps": 0})
    assert len(block.laws())
