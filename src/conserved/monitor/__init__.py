"""The ledger of drift, its run log, and the monitor that keeps them while a model trains."""

from conserved.monitor.ledger import LawAccount as LawAccount
from conserved.monitor.ledger import Ledger as Ledger
from conserved.monitor.monitor import Monitor as Monitor
from conserved.monitor.runlog import RunHeader as RunHeader
from conserved.monitor.runlog import RunLog as RunLog
from conserved.monitor.runlog import load_run as load_run
from conserved.monitor.runlog import read_header as read_header
from conserved.monitor.runlog import read_records as read_records

__all__ = [
    # while training
    "Monitor", "Ledger", "LawAccount",
    # run directories
    "RunLog", "RunHeader", "load_run", "read_header", "read_records",
]  # fmt: skip
