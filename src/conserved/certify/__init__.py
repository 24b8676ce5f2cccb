"""Certify: how many conservation laws there are, and whether the list is complete."""

from conserved.certify.certification import Certification as Certification
from conserved.certify.certification import certify as certify

__all__ = ["Certification", "certify"]
