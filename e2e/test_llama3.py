"""Llama 3 pre-training in every parallelism, one training run per case: `pytest e2e -k llama3`."""

from __future__ import annotations

import pytest

from allranks.result import TrainingRun
from e2e.statements import CaseStatements
from fixtures.cases import CaseRun


@pytest.fixture(scope="class")
def training_run(case_run: CaseRun) -> TrainingRun:
    """The case's run, for the statements that hold of any run."""
    return case_run.run


class TestLlama3Training(CaseStatements):
    """One training job per case and accelerator; each test is one statement about it."""

    model = "llama3"
