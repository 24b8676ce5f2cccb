"""`value` and `residual` inside a compiled function: a graph break, no warning, the uncompiled numbers."""

import shutil
from collections.abc import Callable, Iterator

import pytest
import torch
from cases import EQUAL
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from conserved.catalog import Attention, Block, GatedLinearUnit, NormalizedLinear, SoftmaxClassifier, randomize
from conserved.law import residual, value

BLOCKS: dict[str, Callable[[], Block]] = {
    "glu": lambda: GatedLinearUnit(3, 4, 2, bias=True),
    "gqa": lambda: Attention(5, 4, 4, kv_heads=2, position="rope"),
    "classifier": lambda: SoftmaxClassifier(4, 3),
    "gain": lambda: NormalizedLinear(4, (3, 2), offset=1.0),
}
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
INDUCTOR = pytest.mark.skipif(COMPILER is None, reason="inductor needs a C++ compiler")
RUNS = [*((name, "eager") for name in BLOCKS), pytest.param("gqa", "inductor", marks=INDUCTOR)]


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # inductor's own imports


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """No compiled code from other tests."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(("name", "backend"), RUNS)
def test_compiled_equals_eager(name: str, backend: str) -> None:
    """The same numbers for two sets of tensors in turn, between operations that are compiled."""
    block = BLOCKS[name]()
    laws = block.laws()

    def numbers(params: dict[str, Tensor], grads: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        doubled = {name: 2 * p for name, p in params.items()}
        return value(laws, doubled), {name: r + 1 for name, r in residual(laws, doubled, grads).items()}

    graphs = CompileCounterWithBackend(backend)
    compiled = torch.compile(numbers, backend=graphs)
    for seed in (0, 1):
        generator = torch.Generator().manual_seed(seed)
        randomize(block, generator)
        params = {n: p.detach().clone() for n, p in block.named_parameters()}
        grads = {n: torch.randn(p.shape, generator=generator) for n, p in params.items()}
        for seen, expected in zip(compiled(params, grads), numbers(params, grads), strict=True):
            assert seen.keys() == expected.keys()
            for law, tensor in expected.items():
                assert not seen[law].requires_grad
                assert float((seen[law] - tensor).abs().max()) <= EQUAL[torch.float32] * (1 + float(tensor.abs().max())), law
    assert graphs.frame_count >= 1, "nothing was compiled"
