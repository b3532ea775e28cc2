"""Fixtures of the stand-in's tests."""

from tests.standin.kit import kubectl, standin, start

__all__ = ["kubectl", "standin", "start"]
