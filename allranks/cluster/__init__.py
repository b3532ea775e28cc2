"""The Kubernetes API as the harness uses it: which cluster, what is in it, creating, watching, following logs."""

from __future__ import annotations


class ClusterError(Exception):
    """The cluster cannot be used as asked. The message is for people: what happened, to whom, what to do."""


class NoSuchPool(ClusterError):
    """The cluster has no usable nodes with the accelerator that was asked for."""
