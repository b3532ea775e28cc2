"""All rows of the fault suite."""

from __future__ import annotations

from tests.faults.rows_api import API_ROWS
from tests.faults.rows_pods import POD_ROWS
from tests.faults.rows_program import PROGRAM_ROWS

ROWS = (*PROGRAM_ROWS, *POD_ROWS, *API_ROWS)
