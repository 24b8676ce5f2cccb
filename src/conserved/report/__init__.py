"""The report: one self-contained HTML page on a run or a study, readable offline."""

from conserved.report.write import write_report as write_report

__all__ = ["write_report"]
