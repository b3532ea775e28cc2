"""The harness's pytest plugins. Options, fixtures and reports live in fixtures/; this file only names them."""

pytest_plugins = [
    "fixtures.options",
    "fixtures.cluster",
    "fixtures.live",
    "fixtures.runs",
    "fixtures.scheduling",
    "fixtures.reporting",
]
