"""Measured claims. Each benchmark runs a peer in the same run and prints ratios: `python -m benchmarks [NAME …]`."""
