"""BERT pre-training on accelerator nodes: `pytest e2e -k bert`."""

from __future__ import annotations

from allranks.settings import Workload
from e2e.statements import RunStatements


class TestBertTraining(RunStatements):
    """One training job per accelerator; each test is one statement about it."""

    workload = Workload(name="bert", module="workloads.bert")
