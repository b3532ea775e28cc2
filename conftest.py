"""The harness's pytest plugins. Options, fixtures and reports live in fixtures/; this file only names them."""

import pytest

pytest.register_assert_rewrite("e2e.statements")

pytest_plugins = [
    "fixtures.options",
    "fixtures.cluster",
    "fixtures.live",
    "fixtures.runs",
    "fixtures.cases",
    "fixtures.scheduling",
    "fixtures.reporting",
]
