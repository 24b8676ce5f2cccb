"""How many laws: the closed forms of the theorems, and those of assembled transformers."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch

from conserved.catalog import (
    Attention,
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
    make_block,
)
from conserved.law import LawSet

# of the theorems and of the certified table
BLOCKS: list[tuple[partial[Block], int]] = [
    (partial(LinearNetwork, (3, 2, 3)), 3),
    (partial(LinearNetwork, (2, 4, 3)), 10),
    (partial(LinearNetwork, (2, 7, 3)), 25),  # rank 5 of 7: 5·7 − 5·4/2
    (partial(LinearNetwork, (2, 7, 3), bias=True), 27),  # rank 6 of 7
    (partial(LinearNetwork, (3, 2)), 0),
    (partial(ReLUNetwork, (3, 5, 4, 2)), 9),
    (partial(MatrixFactorization, 4, 3, rank=2), 3),
    (partial(MatrixFactorization, 1, 2, rank=5), 3 * 5 - 3),  # rank 3 of 5
    (partial(InputConvexNetwork, 3, 4, 2), 4),
    (partial(ConvolutionBlock, 2, 3, skip=True), 3),
    (partial(FeedForward, 3, 3, 2, "gelu"), 0),
    (partial(FeedForward, 3, 3, 2, "silu"), 0),
    (partial(FeedForward, 3, 3, 2, "tanh"), 0),
    (partial(FeedForward, 3, 4, 2, "relu", bias=True), 4),
    (partial(GatedLinearUnit, 3, 4, 2), 4),
    (partial(GatedLinearUnit, 16, 32, 16), 32),
    (partial(GatedLinearUnit, 3, 4, 2, "identity"), 8),
    (partial(Attention, 3, 2, 2), 12),
    (partial(Attention, 16, 4, 4), 80),
    (partial(Attention, 2, 1, 5), 2 * (4 * 5 - 6)),  # head_dim > 2 dim: rank 4 of 5, for Q–K and V–O
    (partial(Attention, 3, 1, 2, position="rope"), 4),
    (partial(Attention, 3, 1, 4, position="rope"), 12),
    (partial(Attention, 5, 2, 6, position="rope", rotary_dim=4), 2 * (2 + 3 + 21)),
    (partial(Attention, 5, 4, 4, kv_heads=2, position="rope"), 2 * (2 + 10)),
    (partial(Attention, 5, 2, 4, bias=True), 2 * (10 + 10 + 4)),
    (partial(Attention, 5, 2, 4, qk_norm=True, position="rope"), 2 + 2 + 2 + 2 * 10),
    (partial(Attention, 5, 2, 4, qk_norm=True), 2 + 2 + 4 + 2 * 10),
    (partial(MixtureOfExperts, 2, 2, 2, experts=2), 6),
    (partial(MixtureOfExperts, 2, 2, 2, experts=2, gate="sigmoid"), 4),
    (partial(MixtureOfExperts, 3, 4, 2, experts=4, top_k=2, router_bias=True), 16 + 3 + 1),
    (partial(MixtureOfExperts, 3, 4, 2, experts=4, top_k=1), 16 + 3),
    (partial(MixtureOfExperts, 3, 4, 2, experts=4, top_k=1, renormalize=True), 16),
    (partial(MixtureOfExperts, 3, 4, 2, experts=4, z_loss=True), 16),
    (partial(MixtureOfExperts, 3, 4, 2, experts=4, load_balancing=True), 16 + 3),
    (partial(NormalizedLinear, 4, (3, 2)), 4),
    (partial(LayerScale, 4, 3), 4),
    (partial(LoRA, 5, 4, 2), 3),
    (partial(LoRA, 2, 3, 7), 5 * 7 - 10),
    (partial(SoftmaxClassifier, 4, 3), 5),
]


def _id(build: partial[Block]) -> str:
    return f"{build.func.__name__}{build.args}{build.keywords or ''}"  # type: ignore[attr-defined]


@pytest.mark.parametrize(("build", "count"), BLOCKS, ids=[_id(build) for build, _ in BLOCKS])
def test_counts_of_blocks(build: partial[Block], count: int) -> None:
    """The number of the theorem."""
    assert build().laws().independent_count == count


GPT = {"vocab": 5, "dim": 4, "heads": 2, "mlp": ("gelu",), "hidden": 3, "tokens": 5, "norm": "layer", "position": "learned", "bias": True, "layers": 1}
LLAMA = {"vocab": 5, "dim": 4, "heads": 2, "kv_heads": 1, "head_dim": 4, "hidden": 3, "layers": 1}
QWEN3 = LLAMA | {"qk_norm": True}


def laws_of(options: Mapping[str, Any]) -> LawSet:
    """Laws of a decoder."""
    return Decoder(TransformerConfig(**options)).laws()


def without(laws: LawSet, *families: str) -> LawSet:
    """The laws of all other families."""
    return LawSet(tuple(law for law in laws if law.family not in families))


def by_family(laws: LawSet) -> dict[str, int]:
    """Sum of the counts of each family."""
    return {family: sum(law.count for law in laws.select(family=family)) for family in laws.families}


DECODERS = {
    # Llama of hidden size 4 with an MLP of 3 (and of 5)
    "llama": (LLAMA, 27, {"rope": 2, "value_output": 10, "glu": 3, "norm_gain": 12}),
    "llama, 5 hidden": (LLAMA | {"hidden": 5}, 29, {"rope": 2, "value_output": 10, "glu": 5, "norm_gain": 12}),
    "llama, 5 hidden, tied": (LLAMA | {"hidden": 5, "tied": True}, 25, {"rope": 2, "value_output": 10, "glu": 5, "norm_gain": 8}),
    # the rotary law goes, the law of the gains comes; the approximate ‖W_Q‖², ‖W_K‖² are not counted
    "qwen3": (QWEN3, 27, {"qk_gain": 2, "value_output": 10, "glu": 3, "norm_gain": 12}),
    "qwen3, 5 hidden": (QWEN3 | {"hidden": 5}, 29, {"qk_gain": 2, "value_output": 10, "glu": 5, "norm_gain": 12}),
    # 19 means: 5 tokens + 5 positions + 4 columns of O + 3 columns of A + 2 biases; 4 exchanges share one total with them
    "gpt2": (GPT, 50, {"query_key": 6, "value_output": 6, "key_bias": 4, "norm_gain": 12, "stream_exchange": 4, "stream_mean": 19}),
    "gpt2, tied": (GPT | {"tied": True}, 42, {"query_key": 6, "value_output": 6, "key_bias": 4, "norm_gain": 8, "stream_exchange": 4, "stream_mean": 14}),
}


@pytest.mark.parametrize("name", DECODERS)
def test_exact_laws_of_decoders(name: str) -> None:
    """Without the classifier's law, which is one of the softmax, and without approximate laws."""
    options, count, families = DECODERS[name]
    exact = without(laws_of(options).select(exact=True), "classifier")
    assert by_family(exact) == families
    assert exact.independent_count == count


def test_approximate_laws_of_decoders() -> None:
    """The scale of the stream, and with QK-norm one for each query and key head."""
    assert by_family(laws_of(LLAMA).select(exact=False)) == {"stream_scale": 1}
    assert by_family(laws_of(QWEN3).select(exact=False)) == {"qk_norm": 3, "stream_scale": 1}
    assert by_family(laws_of(LLAMA | {"tied": True}).select(family="classifier")) == {}
    assert by_family(laws_of(LLAMA).select(family="classifier")) == {"classifier": 4}
    assert laws_of(QWEN3 | {"eps": 0.0}).select(exact=False).laws == ()


def test_laws_need_no_numbers() -> None:
    """Laws of a model on the meta device equal those of the real one."""
    with torch.device("meta"):
        shapes_only = Decoder(TransformerConfig(**GPT)).laws()
    assert shapes_only == laws_of(GPT)


def test_names_follow_the_layers() -> None:
    """Every law of a layer is named by its path; the others join blocks."""
    laws = Decoder(TransformerConfig(layers=2)).laws()
    inside = laws.select(name="layers.*")
    assert {law.name.split(".")[1] for law in inside} == {"0", "1"}
    assert all(law.layer.startswith("layers.") for law in inside)
    assert {law.name for law in laws} - {law.name for law in inside} == {"norm.gain", "head.classifier", "stream_scale"}


def test_registered_blocks_have_their_default_counts() -> None:
    """One number for each name: a changed default shows."""
    seen = {name: make_block(name).laws().independent_count for name in ("rope", "gqa", "mqa", "qk-norm", "key-bias", "sparse-moe", "sigmoid-moe")}
    assert seen == {"rope": 24, "gqa": 24, "mqa": 12, "qk-norm": 26, "key-bias": 48, "sparse-moe": 19, "sigmoid-moe": 12}
