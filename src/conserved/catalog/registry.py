"""The blocks by name, with the sizes they have by default."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import NoneType, UnionType
from typing import Any, cast, get_args, get_origin, get_type_hints

from conserved.catalog.attention import Attention
from conserved.catalog.batch_norm import BatchNormBlock
from conserved.catalog.block import Block
from conserved.catalog.classifier import SoftmaxClassifier
from conserved.catalog.convolution import ConvolutionBlock
from conserved.catalog.feedforward import FeedForward
from conserved.catalog.glu import GatedLinearUnit
from conserved.catalog.icnn import InputConvexNetwork
from conserved.catalog.layer_scale import LayerScale
from conserved.catalog.linear import LinearNetwork
from conserved.catalog.lora import LoRA
from conserved.catalog.moe import MixtureOfExperts
from conserved.catalog.nmf import MatrixFactorization
from conserved.catalog.norm import NormalizedLinear
from conserved.catalog.relu import ReLUNetwork
from conserved.catalog.transformer import Decoder, TransformerConfig, VisionTransformer
from conserved.errors import ConfigurationError, UnknownNameError


def _decoder(**options: Any) -> Decoder:
    return Decoder(TransformerConfig(**options))


def _vision(**options: Any) -> VisionTransformer:
    return VisionTransformer(TransformerConfig(**options))


BLOCKS: dict[str, Callable[..., Block]] = {
    "linear": LinearNetwork,
    "relu": ReLUNetwork,
    "leaky-relu": partial(ReLUNetwork, slope=0.1),
    "nmf": MatrixFactorization,
    "icnn": InputConvexNetwork,
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
    "vit": partial(_vision, norm="layer", position="learned", mlp=("gelu",), bias=True),
}


def make_block(name: str, options: Mapping[str, Any] | None = None) -> Block:
    """Build a catalogue block by name.

    Args:
        name: a key of `BLOCKS`.
        options: arguments of the block that replace its defaults.

    Raises:
        UnknownNameError: no block or option of that name.
        ConfigurationError: an option's value is of another type, or contradicts others.

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
    kinds = get_type_hints(_target(name).__init__)  # type: ignore[misc]  # the class's own, not an instance's
    return BLOCKS[name](**{option: _fitted(name, option, value, kinds[option]) for option, value in (options or {}).items()})


def block_options(name: str) -> dict[str, Any]:
    """Options of a block with their defaults."""
    factory = BLOCKS[name]
    fixed = factory.keywords if isinstance(factory, partial) else {}
    return {key: fixed.get(key, p.default) for key, p in inspect.signature(_target(name)).parameters.items()}


def _target(name: str) -> type:
    """The class whose constructor takes the block's options."""
    factory = BLOCKS[name]
    target = factory.func if isinstance(factory, partial) else factory
    return TransformerConfig if target in (_decoder, _vision) else cast(type, target)


def _fitted(block: str, option: str, value: Any, kind: Any) -> Any:
    """The value as its annotation wants it: a list is as good as a tuple, 1 as good as 1.0."""
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if isinstance(value, list):
        value = tuple(value)
    if any(_is(value, one) for one in kinds):
        return value
    expected = " or ".join("None" if one is NoneType else str(one) if get_origin(one) else one.__name__ for one in kinds)
    raise ConfigurationError(f"block {block!r}: {option}={value!r} does not fit; give {expected}")


def _is(value: Any, kind: Any) -> bool:
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is(part, get_args(kind)[0]) for part in value)
    if kind is not bool and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if kind is float else kind)
