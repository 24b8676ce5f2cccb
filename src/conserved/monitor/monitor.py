"""`Monitor`: watches the laws of a model while any loop trains it, and changes nothing."""

import platform
import time
import warnings
from collections.abc import Mapping
from os import PathLike
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from conserved.catalog import find_laws
from conserved.errors import ConfigurationError, NoLawsError, NonFiniteError, RunError
from conserved.law import LawSet
from conserved.monitor.ledger import LawAccount, Ledger
from conserved.monitor.runlog import COLUMNS, RunHeader, RunLog
from conserved.monitor.update import PlainStep, decay_factors, describe, plain_step
from conserved.version import __version__

LEDGERS = ("exact", "sampled", None)


class Monitor:
    r"""Keeps the ledger of every law while a model trains.

        with Monitor(model, optimizer, log="runs/a") as monitor:
            for batch in data:
                loss = …; optimizer.zero_grad(); loss.backward(); optimizer.step()
                monitor.step(loss=loss.item())

    It hooks into `optimizer.step()`, reads parameters and gradients, and never writes to them: training with and
    without it gives bit-identical parameters. `step` ends a training step: it attaches scalars to its record. A step
    that was not ended is ended by the next one.

    Works with gradient accumulation, clipping, learning-rate schedules, parameter groups and any optimiser, since it sees
    what the optimiser sees and what the weights become. Plain SGD is booked before the step without a copy of the
    weights; everything else needs one copy.

    Args:
        model: the model.
        optimizer: the optimiser that trains it.
        laws: what to watch; None finds the laws of the model.
        log: run directory to write, or None. One that holds a run is refused unless `resume` is given.
        every: steps between evaluations and records.
        ledger: "exact" books every step; "sampled" only those that are logged, each standing for `every` steps, and is
            marked as an estimate; None keeps drift and residual alone.
        resume: what `state_dict` returned when the model's checkpoint was saved.
        configuration: plain data to store in `run.json`.

    Raises:
        NoLawsError: there is no law to watch.
        NonFiniteError: the parameters hold NaN or infinity at the start.
        MissingParameterError, ShapeMismatchError: the laws are not of this model.
        RunError: the run directory is in use, damaged, or of other laws.
        ConfigurationError: every < 1 or an unknown ledger.

    Example:
        >>> import torch, conserved
        >>> model = conserved.catalog.GatedLinearUnit(3, 5, 2).double()
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with conserved.Monitor(model, optimizer) as monitor:
        ...     for _ in range(3):
        ...         optimizer.zero_grad()
        ...         model(torch.ones(4, 3, dtype=torch.float64)).square().sum().backward()
        ...         optimizer.step()
        >>> account = monitor.accounts()[0]
        >>> account.mismatch < 1e-9, account.worst_residual < 1e-12
        (True, True)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        laws: LawSet | None = None,
        log: str | PathLike[str] | None = None,
        every: int = 1,
        ledger: str | None = "exact",
        *,
        resume: Mapping[str, Any] | None = None,
        configuration: Mapping[str, Any] | None = None,
    ) -> None:
        if every < 1:
            raise ConfigurationError(f"monitor: every={every}; give a number of steps of at least 1")
        if ledger not in LEDGERS:
            raise ConfigurationError(f"monitor: ledger={ledger!r} is unknown; choose 'exact', 'sampled' or None")
        self.laws = find_laws(model) if laws is None else laws
        if not len(self.laws):
            why = "; ".join(absence.reason for absence in self.laws.absences) or "the LawSet is empty"
            raise NoLawsError(f"monitor: no law to watch: {why}; pass laws= to watch others")
        self.every, self.mode = every, ledger
        self.optimizer = optimizer
        named = dict(model.named_parameters())
        used = {term.parameter for law in self.laws for term in (*law.terms, *law.reference)}
        self._watched = {name: parameter for name, parameter in named.items() if name in used}
        self._params: dict[str, Tensor] = {name: parameter.detach() for name, parameter in self._watched.items()}
        self.ledger = Ledger(self.laws, self._params, split=ledger is not None)
        if not all(bool(part.isfinite().all()) for part in self.ledger.current):
            raise NonFiniteError("monitor: the parameters hold NaN or infinity at the start; load or initialise them first")
        self.steps = 0
        self._started = time.monotonic()
        self._update: dict[str, Tensor] = {}  # θ before the step, turned into Δ after it
        self._measured = False
        self._open = False  # a step was taken whose record is not written yet
        self._warned = False
        if resume is not None:
            self._resume(resume)
        self._log = self._start_log(log, resume is not None, configuration or {})
        if self._log is not None and resume is None:
            self._write({})
        self._hooks = [optimizer.register_step_pre_hook(self._before_step), optimizer.register_step_post_hook(self._after_step)]

    def _start_log(self, log: str | PathLike[str] | None, resumed: bool, configuration: Mapping[str, Any]) -> RunLog | None:
        if log is None:
            return None
        if resumed:
            return RunLog.resume(log, self.laws)
        versions = {"conserved": __version__, "torch": torch.__version__, "python": platform.python_version()}
        dtypes = tuple(sorted({str(parameter.dtype).removeprefix("torch.") for parameter in self._watched.values()}))
        header = RunHeader(self.laws, configuration, describe(self.optimizer), self.mode, self.every, versions, dtypes=dtypes)
        return RunLog.create(log, header)

    def _resume(self, state: Mapping[str, Any]) -> None:
        if (state["every"], state["ledger"]) != (self.every, self.mode):
            raise RunError(f"monitor: the state has every={state['every']}, ledger={state['ledger']!r}; resume with the same")
        self.ledger.load_state_dict(state["sums"])
        self.steps = state["steps"]

    @property
    def _logged(self) -> bool:
        """Whether the step being taken is one that is evaluated and logged."""
        return (self.steps + 1) % self.every == 0

    @torch.no_grad()
    def _before_step(self, *_: Any) -> None:
        self.step()  # end the last one, if the loop did not
        self._refresh()
        self._measured = False
        booked = self.mode == "exact" or (self.mode == "sampled" and self._logged)
        if not booked and not self._logged:
            return
        grads = self._gradients()
        if not booked:
            self.ledger.check(self._params, grads)
            return
        plain = plain_step(self.optimizer, self._watched, self.ledger.offset)
        if isinstance(plain, PlainStep):
            self.ledger.book_plain(self._params, grads, plain, self._weight)
            return
        if self._logged:
            self.ledger.check(self._params, grads)
        factors = decay_factors(self.optimizer, self._watched)
        if factors:
            self.ledger.book_decay(self._params, factors, self._weight)
        self._copy_parameters()
        self._measured = True

    @torch.no_grad()
    def _after_step(self, *_: Any) -> None:
        self._refresh()
        if self._measured:
            for name, held in self._update.items():
                torch.sub(self._params[name], held, out=held)
            self.ledger.book_measured(self._params, self._update, self._weight)
        if self._logged:
            self.ledger.observe(self._params)
        self.steps += 1
        self._open = True

    @property
    def _weight(self) -> int:
        return self.every if self.mode == "sampled" else 1

    def _refresh(self) -> None:
        """Parameters may have been given new storage since (model.to, a loaded checkpoint)."""
        for name, parameter in self._watched.items():
            if self._params[name].data_ptr() != parameter.data_ptr() or self._params[name].dtype != parameter.dtype:
                self._params[name] = parameter.detach()

    def _gradients(self) -> dict[str, Tensor]:
        grads = {}
        for name, parameter in self._watched.items():
            if parameter.grad is not None:
                grads[name] = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        return grads

    def _copy_parameters(self) -> None:
        for name, parameter in self._params.items():
            held = self._update.get(name)
            if held is None or held.device != parameter.device:
                self._update[name] = parameter.to(torch.promote_types(parameter.dtype, torch.float32), copy=True)
            else:
                held.copy_(parameter)

    def step(self, **scalars: float) -> None:
        """End a training step: write its record if it is a logged one, with these scalars (loss=…).

        Does nothing if no step was taken since.
        """
        if not self._open:
            return
        self._open = False
        if self.steps % self.every:
            return
        if not self._warned and not all(bool(part.isfinite().all()) for part in self.ledger.current):
            self._warned = True
            warnings.warn(f"conserved: a law's value is NaN or infinite after step {self.steps}; what follows is not evaluated", RuntimeWarning, stacklevel=2)
        self._write(scalars)

    def _write(self, scalars: Mapping[str, float]) -> None:
        if self._log is None:
            return
        accounts = self.ledger.accounts()
        record: dict[str, Any] = {"step": self.steps, "time": time.monotonic() - self._started, "lr": float(self.optimizer.param_groups[0]["lr"])}
        record |= {key: float(value) for key, value in scalars.items()}
        record |= {column: [getattr(account, column) for account in accounts] for column in COLUMNS}
        self._log.append(record)

    def accounts(self) -> list[LawAccount]:
        """Where every law stands now, in the order of `laws`."""
        self._look()
        return self.ledger.accounts()

    @torch.no_grad()
    def _look(self) -> None:
        self._refresh()
        self.ledger.observe(self._params)

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on exactly: save it with the model's and the optimiser's checkpoint."""
        self.step()
        self._look()
        return {"steps": self.steps, "every": self.every, "ledger": self.mode, "sums": self.ledger.state_dict()}

    def close(self) -> None:
        """End the last step, remove the hooks, close the log."""
        self.step()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._log is not None:
            self._log.close()
            self._log = None

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close, also after an error: what was recorded stays."""
        self.close()
