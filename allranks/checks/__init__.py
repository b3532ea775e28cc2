"""Plan + Ledger → findings and the verdict, without I/O."""

from allranks.checks.evidence import PodEvidence
from allranks.checks.verdict import earlier_attempts, judge

__all__ = ["PodEvidence", "earlier_attempts", "judge"]
