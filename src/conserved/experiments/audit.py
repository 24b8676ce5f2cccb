r"""The audit of arXiv 2606.17816: every claim of the paper as a check, with a verdict and its evidence.

A theorem about laws says how many independent ones there are. Here that number is a formula, written down from the theorem and nothing
else (`conserved.experiments.paper`); `conserved.certify` counts the laws of the block without it; the verdict is the comparison of the
two (`conserved.experiments.checks`).
"""

import json
import platform
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from conserved.catalog.block import SEED
from conserved.certify import Certificate
from conserved.errors import ConfigurationError, RunError, UnknownNameError
from conserved.experiments.checks import Bench
from conserved.experiments.claims import AUDIT, AuditResult, Check, Claim
from conserved.experiments.paper import PLANS
from conserved.monitor.runlog import HEADER
from conserved.version import __version__

SUMMARY = "summary.json"
CERTIFICATES = "certificates"


def audit(
    claims: Sequence[str] | None = None, *, seed: int = 0, directory: Path | None = None, progress: Callable[[int, int], None] | None = None
) -> AuditResult:
    """Check the claims of the paper.

    Args:
        claims: ids of `PLANS`, such as "4.2" or "level-sets"; None for all.
        seed: of everything random.
        directory: where to write audit.json, the certificates and report.html: a new or empty one, or that of a run, a study or an
            earlier audit. None writes nothing.
        progress: called with (checks done, checks in all).

    Raises:
        UnknownNameError: no claim has that id.
        ConfigurationError: the seed is no whole number from 0 to 2**63 − 1.
        RunError: the directory is in use, or holds a report.html of others.
        OSError: the directory cannot be made or written.

    Example:
        >>> found = audit(["4.2"])
        >>> [(claim.id, claim.verdict, claim.summary) for claim in found.claims]
        [('4.2', 'proved', 'proved in 2, numerical in 1 of 3 checks')]
        >>> found.holds
        True
    """
    if not 0 <= seed < 2**63:
        raise ConfigurationError(f"audit: seed={seed}; give a whole number from 0 to 2**63 - 1")
    known = [plan.id for plan in PLANS]
    for name in claims or ():
        if name not in known:
            raise UnknownNameError(f"the audit has no claim {name!r}; choose among {', '.join(known)}")
    if directory is not None:
        open_directory(directory)  # one that cannot be used is told before the work, not after
    chosen = [plan for plan in PLANS if not claims or plan.id in claims]
    total, done, bench = sum(len(plan.jobs) for plan in chosen), 0, Bench(seed)
    began, found = time.perf_counter(), []
    with _one_thread():
        for plan in chosen:
            checks = []
            for job in plan.jobs:
                checks.append(job(bench))
                done += 1
                if progress is not None:
                    progress(done, total)
            found.append(Claim(plan.id, plan.statement, plan.source, tuple(checks), plan.note))
    versions = {"conserved": __version__, "torch": torch.__version__, "python": platform.python_version()}
    result = AuditResult(SEED, tuple(found), seed, versions, time.perf_counter() - began)
    return result if directory is None else write_audit(result, directory)


@contextmanager
def _one_thread() -> Generator[None]:
    """The matrices are small: several threads mostly wait for each other, for minutes where the processors are busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def open_directory(directory: Path) -> Path:
    """Make the directory of an audit, or take one that an audit, a run or a study may share.

    Raises:
        RunError: something else is there.
        OSError: it cannot be made.
    """
    ours = any((directory / name).exists() for name in (AUDIT, HEADER, SUMMARY))
    if directory.exists() and not (directory.is_dir() and (ours or not any(directory.iterdir()))):
        raise RunError(f"{directory} is in use; choose a new or empty directory, or that of a run, a study or an earlier audit")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def write_audit(result: AuditResult, directory: Path) -> AuditResult:
    """Write audit.json, a certificate for every proof that has one, and report.html.

    Args:
        result: of `audit`.
        directory: as `open_directory` takes it.

    Returns:
        The audit that names its certificates.

    Raises:
        RunError: the directory is in use, or holds a report.html of others.
        OSError: it cannot be written.
    """
    from conserved.report import write_report

    folder = open_directory(directory)
    saved: dict[str, Certificate] = {}
    claims = tuple(replace(claim, checks=tuple(_saved(claim.id, number, check, saved) for number, check in enumerate(claim.checks))) for claim in result.claims)
    named = replace(result, claims=claims)
    for name, certificate in saved.items():
        (folder / name).parent.mkdir(exist_ok=True)
        certificate.save(folder / name)
    (folder / AUDIT).write_text(json.dumps(named.to_json(), indent=1, ensure_ascii=False, allow_nan=False), encoding="utf-8")
    write_report(folder)
    return named


def _saved(claim: str, number: int, check: Check, saved: dict[str, Certificate]) -> Check:
    """The check with the name of its certificate; a certificate that several checks share has one name."""
    if check.certificate is None:
        return check
    known = next((name for name, certificate in saved.items() if certificate is check.certificate), None)
    name = known or f"{CERTIFICATES}/{claim}-{number}-{check.block}.json"
    saved[name] = check.certificate
    return replace(check, file=name)
