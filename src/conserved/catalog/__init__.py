"""The catalogue: every block of the theory, with the laws it owns."""

from conserved.catalog.attention import Attention as Attention
from conserved.catalog.batch_norm import BatchNormBlock as BatchNormBlock
from conserved.catalog.block import Block as Block
from conserved.catalog.block import Statement as Statement
from conserved.catalog.block import randomize as randomize
from conserved.catalog.classifier import SoftmaxClassifier as SoftmaxClassifier
from conserved.catalog.collect import find_laws as find_laws
from conserved.catalog.convolution import ConvolutionBlock as ConvolutionBlock
from conserved.catalog.feedforward import FeedForward as FeedForward
from conserved.catalog.glu import GatedLinearUnit as GatedLinearUnit
from conserved.catalog.icnn import InputConvexNetwork as InputConvexNetwork
from conserved.catalog.layer_scale import LayerScale as LayerScale
from conserved.catalog.linear import LinearNetwork as LinearNetwork
from conserved.catalog.lora import LoRA as LoRA
from conserved.catalog.moe import MixtureOfExperts as MixtureOfExperts
from conserved.catalog.nmf import MatrixFactorization as MatrixFactorization
from conserved.catalog.norm import NormalizedLinear as NormalizedLinear
from conserved.catalog.registry import BLOCKS as BLOCKS
from conserved.catalog.registry import make_block as make_block
from conserved.catalog.relu import ReLUNetwork as ReLUNetwork
from conserved.catalog.transformer import Decoder as Decoder
from conserved.catalog.transformer import TransformerConfig as TransformerConfig
from conserved.catalog.transformer import VisionTransformer as VisionTransformer

__all__ = [
    # networks
    "LinearNetwork", "MatrixFactorization", "ReLUNetwork", "InputConvexNetwork", "ConvolutionBlock", "FeedForward", "GatedLinearUnit",
    # attention and mixtures
    "Attention", "MixtureOfExperts",
    # norms, gains, adapters, heads
    "NormalizedLinear", "LayerScale", "BatchNormBlock", "LoRA", "SoftmaxClassifier",
    # assembled
    "Decoder", "VisionTransformer", "TransformerConfig",
    # by name
    "BLOCKS", "make_block", "find_laws", "randomize", "Block", "Statement",
]  # fmt: skip
