"""A PNG of a few colours: a hundred times smaller than as many rectangles."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

#: A colour with its opacity, each of the four from 0 to 255.
Color = tuple[int, int, int, int]


def data_uri(rows: Sequence[bytes], palette: Sequence[Color]) -> str:
    """Rows of palette indices as a ``data:`` address."""
    colors = b"".join(bytes(color[:3]) for color in palette)
    opacities = bytes(color[3] for color in palette)
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 3, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    parts = ((b"IHDR", header), (b"PLTE", colors), (b"tRNS", opacities), (b"IDAT", pixels))
    body = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in (*parts, (b"IEND", b"")))
    return "data:image/png;base64," + base64.b64encode(body).decode("ascii")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
