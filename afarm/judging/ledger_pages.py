"""Rows of a damaged SQLite file, read without the pages that lead to those that hold them.

Source: "Database File Format", sqlite.org/fileformat2.html, sections 1.6 (b-tree pages) and 2.1 (records).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

PAGE = 4096
"""Bytes per page of every ledger."""

TABLE_LEAF = 0x0D
"""The first byte of a page with rows of a table that has row numbers."""

Row = tuple[Any, ...]


def rows_in_leaves(path: Path, columns: int) -> Iterator[Row]:
    """Yield the rows of `columns` columns in the file at `path`, page by page, without broken ones."""
    with path.open("rb") as file:
        for number in range(path.stat().st_size // PAGE):
            page = _page(file, number)
            if page[0] != TABLE_LEAF:
                continue
            for place in struct.unpack_from(f">{min(int.from_bytes(page[3:5], 'big'), PAGE // 2 - 4)}H", page, 8):
                try:
                    row = _row(_record(file, page, place))
                except (IndexError, ValueError, struct.error):  # remains of something else
                    continue
                if len(row) == columns:
                    yield row


def _page(file: BinaryIO, number: int) -> bytes:
    file.seek(number * PAGE)
    return file.read(PAGE)


def _record(file: BinaryIO, page: bytes, place: int) -> bytes:
    """The record of a cell: what the page has of it, and the pages that it flows over into."""
    size, place = _varint(page, place)
    _, place = _varint(page, place)  # the row's number
    here = size
    if size > PAGE - 35:
        least = (PAGE - 12) * 32 // 255 - 23
        here = least + (size - least) % (PAGE - 4)
        here = here if here <= PAGE - 35 else least
    parts, missing = [page[place : place + here]], size - here
    following = int.from_bytes(page[place + here : place + here + 4], "big")
    while missing > 0:
        over = _page(file, following - 1)  # counted from 1; a ValueError for 0, which is none
        if len(over) < PAGE:
            raise ValueError("it flows over into a page that is not there")
        following = int.from_bytes(over[:4], "big")
        parts.append(over[4 : 4 + missing])
        missing -= PAGE - 4
    return b"".join(parts)


def _row(record: bytes) -> Row:
    """The values of a record. Raises `ValueError` for texts that are no UTF-8."""
    header, place = _varint(record, 0)
    start, row = header, []
    while place < header:
        kind, place = _varint(record, place)
        value, start = _value(record, kind, start)
        row.append(value)
    if start != len(record):
        raise ValueError("its columns do not fill it")
    return tuple(row)


def _value(record: bytes, kind: int, start: int) -> tuple[Any, int]:
    """The value at `start`, and where it ends."""
    if kind in (0, 8, 9):
        return {0: None, 8: 0, 9: 1}[kind], start
    if kind == 7:
        return struct.unpack_from(">d", record, start)[0], start + 8
    size = (1, 2, 3, 4, 6, 8)[kind - 1] if kind < 7 else (kind - 12) // 2
    content = record[start : start + size]
    if kind < 7:
        return int.from_bytes(content, "big", signed=True), start + size
    return (content.decode("utf-8") if kind % 2 else content), start + size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """The integer of one to nine bytes at `place`, and where it ends."""
    value = 0
    for count in range(8):
        byte = data[place + count]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + count + 1
    return value << 8 | data[place + 8], place + 9
