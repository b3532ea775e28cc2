"""bytes → lines → records → Ledger: what every rank said, without I/O and without conclusions."""

from allranks.ledger.account import Account
from allranks.ledger.formats import Format, all_formats
from allranks.ledger.ledger import Ledger, Note, Progress, Source, SourceReader
from allranks.ledger.record import Record, Where

__all__ = [
    "Account",
    "Format",
    "Ledger",
    "Note",
    "Progress",
    "Record",
    "Source",
    "SourceReader",
    "Where",
    "all_formats",
]
