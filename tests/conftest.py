"""What every test starts from: seeded generators, float32 as the default dtype, one thread."""

import random
from collections.abc import Iterator

import pytest
import torch

SEED = 20260


@pytest.fixture(scope="session", autouse=True)
def torch_defaults() -> Iterator[None]:
    """One thread for the whole session, so that times and sums do not depend on the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def seed_everything() -> None:
    """Seed the global generators before every test; tests draw from generators of their own where they can."""
    random.seed(SEED)
    torch.manual_seed(SEED)


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded generator of the test's own."""
    return torch.Generator().manual_seed(SEED)
