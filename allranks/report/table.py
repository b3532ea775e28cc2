"""A table of text that keeps to a width."""

from __future__ import annotations

from collections.abc import Sequence

_LEAST = 6
"""Columns that a shrinking one keeps."""


def format_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, shrinking: Sequence[int]
) -> list[str]:
    """Head line and rows, numbers to the right. A row of one cell goes across.

    Where the whole is wider than `width`, the cells of the `shrinking` columns lose their middle, since names of
    machines differ at both ends.
    """
    whole = [row for row in rows if len(row) == len(heads)]
    widths = [max(map(len, column)) for column in zip(heads, *whole, strict=True)]
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    while excess > 0:
        widest = max(shrinking, key=lambda at: widths[at])
        if widths[widest] <= _LEAST:
            break
        widths[widest] -= 1
        excess -= 1
    right = [all(_is_number(row[at]) for row in whole) for at in range(len(heads))]
    lines = []
    for row in (heads, *rows):
        if len(row) != len(heads):
            lines.append("  ".join(row))
            continue
        cells = (_middle_out(cell, size) for cell, size in zip(row, widths, strict=True))
        aligned = (
            cell.rjust(size) if r else cell.ljust(size) for cell, size, r in zip(cells, widths, right, strict=True)
        )
        lines.append("  ".join(aligned).rstrip())
    return lines


def _is_number(cell: str) -> bool:
    return cell == "–" or ((cell[:1].isdigit() or cell[:1] == "-") and "→" not in cell)


def _middle_out(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"
