"""What certification costs: time and memory against the number of parameters, random networks, wide layers, proofs.

    python benchmarks/certifying.py [--only growth,networks,wide,blocks,proofs] [--threads 2] [--json]

growth      SwiGLU with hidden = 2·dim and out = dim: seconds and peak memory against D, each in a process of its own, beside one
            QR factorisation of a dense D×D matrix: what deciding a rank costs at least, without a single gradient.
networks    50 random linear and 50 random ReLU networks against the closed forms; ReLU: one law for each hidden unit.
wide        wide layers on one-dimensional inputs: real data alone, and the default.
blocks      counts of blocks of the catalogue.
proofs      how long a proof takes, and its verification without the search.

All but growth run in one thread: their matrices are small. Targets are printed beside what they are for; a missed one is marked.
"""

import argparse
import json
import math
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

Row = dict[str, Any]

SIZES = (4, 8, 12, 16, 24, 32)
"""dim of the SwiGLU; D = 6 dim²."""

NETWORKS = 50
PROOFS: tuple[tuple[str, Row, str], ...] = (
    ("swiglu", {"dim": 2, "hidden": 3, "out": 2}, "ball"),
    ("gelu", {"dim": 2, "hidden": 3, "out": 2}, "ball"),
    ("silu", {"dim": 2, "hidden": 3, "out": 2}, "ball"),
    ("mha", {"dim": 2, "heads": 1, "head_dim": 2, "tokens": 3}, "ball"),
    ("rope", {"dim": 2, "heads": 1, "head_dim": 2, "tokens": 3}, "ball"),
    ("moe", {"dim": 2, "hidden": 1, "experts": 2}, "ball"),
    ("linear", {"dims": (3, 2, 3)}, "rational"),
    ("linear", {"dims": (3, 2, 3)}, "modular"),
)
WIDE: tuple[tuple[str, int, str, str], ...] = (
    ("silu", 32, "float64", "real"),
    ("silu", 32, "float64", "auto"),
    ("gelu", 12, "float64", "real"),
    ("gelu", 12, "float64", "auto"),
    ("gelu", 32, "ball", "auto"),
)
SMALL = {"dim": 4, "layers": 1, "heads": 1, "hidden": 3, "tokens": 3, "vocab": 5}
BLOCKS: tuple[tuple[str, Row, str], ...] = (
    ("linear", {"dims": (3, 2, 3)}, "gradient"),
    ("linear", {"dims": (2, 4, 3)}, "gradient"),
    ("linear", {"dims": (2, 4, 5, 2, 2)}, "gradient"),
    ("relu", {"dims": (3, 5, 4, 2)}, "gradient"),
    ("gelu", {"dim": 3, "hidden": 3, "out": 2}, "gradient"),
    ("silu", {"dim": 3, "hidden": 3, "out": 2}, "gradient"),
    ("tanh", {"dim": 3, "hidden": 3, "out": 2}, "gradient"),
    ("swiglu", {"dim": 3, "hidden": 4, "out": 2}, "gradient"),
    ("bilinear", {"dim": 3, "hidden": 4, "out": 2}, "gradient"),
    ("mha", {"dim": 3, "heads": 2, "head_dim": 2}, "gradient"),
    ("mha", {"dim": 16, "heads": 4, "head_dim": 4}, "gradient"),
    ("rope", {"dim": 3, "heads": 1, "head_dim": 2}, "gradient"),
    ("rope", {"dim": 3, "heads": 1, "head_dim": 4}, "gradient"),
    ("moe", {"dim": 2, "hidden": 2, "experts": 2}, "gradient"),
    ("sigmoid-moe", {"dim": 2, "hidden": 2, "experts": 2}, "gradient"),
    ("conv", {}, "gradient"),
    ("lora", {}, "gradient"),
    ("nmf", {}, "gradient"),
    ("nmf", {}, "mirror"),
    ("nmf", {}, "momentum"),
    ("nmf", {}, "mirror-momentum"),
    ("icnn", {}, "gradient"),
    ("icnn", {}, "mirror"),
    ("icnn", {}, "mirror-momentum"),
    ("linear", {"dims": (2, 2, 2)}, "momentum"),
    ("linear", {"dims": (2, 2, 2)}, "nesterov"),
    ("relu", {"dims": (2, 3, 2)}, "momentum"),
    ("decoder", SMALL | {"eps": 0.0}, "gradient"),
    ("decoder", SMALL | {"eps": 0.1}, "gradient"),
    ("layernorm-stream", SMALL | {"eps": 0.0}, "gradient"),
    ("layernorm-stream", SMALL | {"eps": 0.1}, "gradient"),
    ("layernorm-stream", SMALL, "gradient"),
    ("vit", {"dim": 4, "layers": 1, "heads": 1, "hidden": 3, "image": 4, "patch": 2, "channels": 1, "classes": 3, "eps": 0.0}, "gradient"),
    ("vit", {"dim": 4, "layers": 1, "heads": 1, "hidden": 3, "image": 4, "patch": 2, "channels": 1, "classes": 3, "eps": 0.1}, "gradient"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    parser.add_argument("--threads", type=int, default=2, help="threads of the growth section")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--case", nargs=2, metavar=("KIND", "DIM"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(_case(options.case[0], int(options.case[1]))))
        return
    unknown = {*options.only.split(",")} - {*SECTIONS}
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; choose from {', '.join(SECTIONS)}")
    results: dict[str, list[Row]] = {}
    for section in options.only.split(","):
        rows = results[section] = []
        if not options.json:
            print(f"\n{section}")
        for row in SECTIONS[section](options):
            rows.append(row)
            if not options.json:
                print("   ".join(f"{name} {_text(value)}" for name, value in row.items()), flush=True)
    if options.json:
        print(json.dumps(results))


def growth(options: argparse.Namespace) -> Iterator[Row]:
    """Certification and the yardstick take turns, each in a new process: its peak memory is its own."""
    rows = []
    for dim in SIZES:
        row, dense = (_child(kind, dim, options.threads) for kind in ("certify", "qr"))
        row |= {"qr_s": dense["s"], "qr_GB": dense["GB"], "ratio": row["s"] / dense["s"]}
        row |= _against(row["s"], {1536: 5.0, 6144: 90.0}.get(row["D"]))
        row |= {"memory_target": 6.0, "memory_missed": row["GB"] > 6.0} if row["D"] == 6144 else {}
        rows.append(row)
        yield row
    upper = [row for row in rows if row["D"] >= 1500]
    yield {"slope of log s against log D": _slope(rows, "s"), "for D ≥ 1500": _slope(upper, "s"), "of the QR": _slope(upper, "qr_s")}


def _child(kind: str, dim: int, threads: int) -> Row:
    command = [sys.executable, __file__, "--case", kind, str(dim)]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": str(threads)}, stdout=subprocess.PIPE, text=True, check=True)
    row: Row = json.loads(done.stdout)
    return row


def _case(kind: str, dim: int) -> Row:
    """One measurement in this process. Its peak memory includes what importing torch takes."""
    import torch

    size = 6 * dim**2
    if kind == "qr":
        matrix = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        began = time.perf_counter()
        torch.linalg.qr(matrix, mode="r")
        return {"D": size, "s": time.perf_counter() - began, "GB": _peak()}
    from conserved.certify import certify_block

    found = certify_block("swiglu", {"dim": dim, "hidden": 2 * dim, "out": dim})
    return {"D": found.parameters, "s": found.seconds, "GB": _peak(), "laws": found.independent_laws, "verdict": found.verdict, "gap": found.gap}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def networks(_: argparse.Namespace) -> Iterator[Row]:
    from conserved.catalog import LinearNetwork, ReLUNetwork
    from conserved.certify import certify

    _one_thread()

    def all_of(make: Callable[[int], Any], count: Callable[[Any], int]) -> Row:
        random.seed(0)
        began, cpu, agreeing, worst = time.perf_counter(), time.process_time(), 0, math.inf
        for number in range(NETWORKS):
            network = make(number)
            found = certify(network, seed=number)
            agreeing += found.verdict in ("proved", "numerical") and found.independent_laws == count(network)
            worst = min(worst, found.gap)
        return {"agree": f"{agreeing}/{NETWORKS}", "s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu, "worst_gap": worst}

    def widths(largest: int) -> tuple[int, ...]:
        layers = random.randint(2, 4)
        return tuple(random.randint(2, largest) for _ in range(layers + 1))

    linear = all_of(lambda _: LinearNetwork(widths(5)), lambda network: network.laws().independent_count)
    yield {"networks": "linear, 2–4 layers, widths 2–5"} | linear | _against(linear["s"], 40)
    relu = all_of(lambda number: ReLUNetwork(widths(9), bias=bool(number % 2)), lambda network: sum(network.dims[1:-1]))
    yield {"networks": "ReLU, 2–4 layers, widths 2–9, half with bias"} | relu | _against(relu["s"], 120)
    one = _certified("linear", {"dims": (2, 4, 5, 2, 2)}, "gradient")
    yield one | _against(one["s"], 1.5)


def wide(_: argparse.Namespace) -> Iterator[Row]:
    import torch

    from conserved.catalog import make_block
    from conserved.certify import certify
    from conserved.certify.flows import Flow
    from conserved.certify.model import model_of
    from conserved.certify.words import RealWords

    _one_thread()
    for name, hidden, arithmetic, sampling in WIDE:
        block = make_block(name, {"dim": 1, "hidden": hidden, "out": 1})
        found = certify(block, arithmetic=arithmetic, sampling=sampling)
        row = {"block": name, "hidden": hidden, "D": found.parameters, "sampling": sampling, "arithmetic": arithmetic, "rank": found.rank_lie}
        if sampling == "real":  # what a rank by tolerance would say of four times as many gradients as there are parameters
            model, generator = model_of(block), torch.Generator().manual_seed(0)
            state = model.generic_point(generator)
            rows = RealWords(Flow(model), state, torch.arange(model.size), generator)(1, 4 * model.size)
            row["laws by tolerance"] = model.size - int(torch.linalg.matrix_rank(rows))
        laws = found.independent_laws if found.verdict != "undecided" else None
        yield row | {"laws": laws, "verdict": found.verdict, "gap": found.gap, "s": found.seconds}


def blocks(_: argparse.Namespace) -> Iterator[Row]:
    _one_thread()
    for name, options, flow in BLOCKS:
        yield _certified(name, options, flow)


def proofs(_: argparse.Namespace) -> Iterator[Row]:
    from conserved.certify import certify_block, verify

    _one_thread()
    for name, options, arithmetic in PROOFS:
        found = certify_block(name, options, arithmetic=arithmetic)
        row = {"block": f"{name} {_sizes(options)}", "D": found.parameters, "laws": found.independent_laws, "arithmetic": arithmetic}
        row |= {"verdict": found.verdict, "s": found.seconds}
        if found.certificate is not None:
            checked = verify(found.certificate)
            row |= {"verified": checked.valid, "verify_s": checked.seconds}
        yield row | _against(found.seconds, 60)


def _certified(name: str, options: Row, flow: str) -> Row:
    from conserved.certify import certify_block

    found = certify_block(name, options, flow=flow)
    row = {"block": f"{name} {_sizes(options)}".strip(), "flow": flow, "D": found.parameters, "rank_W": found.rank_span, "rank_Lie": found.rank_lie}
    laws = found.independent_laws if found.verdict != "undecided" else None
    return row | {"laws": laws, "known": found.known_laws, "verdict": found.verdict, "gap": found.gap, "s": found.seconds}


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _against(value: float, target: float | None) -> Row:
    return {} if target is None else {"target": target, "missed": value > target}


def _slope(rows: list[Row], key: str) -> float:
    """Least squares slope of the logarithms."""
    points = [(math.log(row["D"]), math.log(row[key])) for row in rows if key in row]
    x, y = (sum(values) / len(points) for values in zip(*points, strict=True))
    slope: float = sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)
    return slope


def _sizes(options: Row) -> str:
    return " ".join(f"{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}" for name, value in options.items())


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if value < 1e4 else f"{value:.0e}"
    return "–" if value is None else str(value)


SECTIONS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "growth": growth,
    "networks": networks,
    "wide": wide,
    "blocks": blocks,
    "proofs": proofs,
}


if __name__ == "__main__":
    main()
