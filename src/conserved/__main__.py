"""`python -m conserved`."""

from conserved.cli import entry

entry()
