"""Bytes from files, directories, globs, archives and standard input, for `judge` and `replay`."""

from allranks.inputs.files import Input, InputError, open_inputs

__all__ = ["Input", "InputError", "open_inputs"]
