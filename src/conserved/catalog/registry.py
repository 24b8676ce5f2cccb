"""The blocks by name, with the sizes they have by default."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from conserved.catalog.attention import Attention
from conserved.catalog.batch_norm import BatchNormBlock
from conserved.catalog.block import Block
from conserved.catalog.classifier import SoftmaxClassifier
from conserved.catalog.convolution import ConvolutionBlock
from conserved.catalog.feedforward import FeedForward
from conserved.catalog.glu import GatedLinearUnit
from conserved.catalog.layer_scale import LayerScale
from conserved.catalog.linear import LinearNetwork
from conserved.catalog.lora import LoRA
from conserved.catalog.moe import MixtureOfExperts
from conserved.catalog.norm import NormalizedLinear
from conserved.catalog.relu import ReLUNetwork
from conserved.catalog.transformer import Decoder, TransformerConfig, VisionTransformer
from conserved.errors import ConfigurationError, UnknownNameError


def _decoder(**options: Any) -> Decoder:
    return Decoder(TransformerConfig(**options))


def _vision(**options: Any) -> VisionTransformer:
    usual: dict[str, Any] = {"norm": "layer", "position": "learned", "mlp": ("gelu",), "bias": True}
    return VisionTransformer(TransformerConfig(**(usual | options)))


BLOCKS: dict[str, Callable[..., Block]] = {
    "linear": LinearNetwork,
    "relu": ReLUNetwork,
    "leaky-relu": partial(ReLUNetwork, slope=0.1),
    "conv": ConvolutionBlock,
    "resnet-block": partial(ConvolutionBlock, skip=True),
    "gelu": partial(FeedForward, activation="gelu"),
    "silu": partial(FeedForward, activation="silu"),
    "tanh": partial(FeedForward, activation="tanh"),
    "swiglu": partial(GatedLinearUnit, gate="silu"),
    "geglu": partial(GatedLinearUnit, gate="gelu"),
    "reglu": partial(GatedLinearUnit, gate="relu"),
    "bilinear": partial(GatedLinearUnit, gate="identity"),
    "mha": Attention,
    "rope": partial(Attention, position="rope"),
    "gqa": partial(Attention, heads=4, kv_heads=2, position="rope"),
    "mqa": partial(Attention, heads=3, kv_heads=1, position="rope"),
    "qk-norm": partial(Attention, position="rope", qk_norm=True),
    "key-bias": partial(Attention, bias=True),
    "moe": MixtureOfExperts,
    "sparse-moe": partial(MixtureOfExperts, experts=4, top_k=2),
    "sigmoid-moe": partial(MixtureOfExperts, gate="sigmoid"),
    "rmsnorm": NormalizedLinear,
    "layernorm": partial(NormalizedLinear, kind="layer"),
    "layer-scale": LayerScale,
    "batch-norm": BatchNormBlock,
    "lora": LoRA,
    "classifier": SoftmaxClassifier,
    "decoder": _decoder,
    "layernorm-stream": partial(_decoder, norm="layer", position="learned", mlp=("gelu",), bias=True, layers=1),
    "vit": _vision,
}


def make_block(name: str, options: Mapping[str, Any] | None = None) -> Block:
    """Build a catalogue block by name.

    Args:
        name: a key of `BLOCKS`.
        options: arguments of the block that replace its defaults.

    Raises:
        UnknownNameError: no block or option of that name.
        ConfigurationError: an option's value does not fit.

    Example:
        >>> make_block("swiglu", {"hidden": 7}).laws().independent_count
        7
    """
    if name not in BLOCKS:
        raise UnknownNameError(f"no catalogue block is named {name!r}; choose one of {', '.join(BLOCKS)}")
    known = block_options(name)
    for option in options or {}:
        if option not in known:
            raise UnknownNameError(f"block {name!r} has no option {option!r}; it takes {', '.join(known)}")
    try:
        return BLOCKS[name](**(options or {}))
    except TypeError as error:
        raise ConfigurationError(f"block {name!r}: {error}; check the options' types") from error


def block_options(name: str) -> dict[str, Any]:
    """Options of a block with their defaults."""
    factory = BLOCKS[name]
    fixed = factory.keywords if isinstance(factory, partial) else {}
    target = factory.func if isinstance(factory, partial) else factory
    if target in (_decoder, _vision):
        target = TransformerConfig
    return {key: fixed.get(key, p.default) for key, p in inspect.signature(target).parameters.items()}
