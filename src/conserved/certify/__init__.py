"""Certify: how many conservation laws there are, and whether the list is complete."""

from conserved.certify.certificate import Certificate as Certificate
from conserved.certify.certificate import Verification as Verification
from conserved.certify.certificate import verify as verify
from conserved.certify.certification import Certification as Certification
from conserved.certify.certification import certify as certify
from conserved.certify.certification import certify_block as certify_block
from conserved.certify.polynomial import PolynomialLaws as PolynomialLaws
from conserved.certify.polynomial import polynomial_laws as polynomial_laws

__all__ = ["Certificate", "Certification", "PolynomialLaws", "Verification", "certify", "certify_block", "polynomial_laws", "verify"]
