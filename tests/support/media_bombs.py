"""Small files of images and sounds that take much time or memory to decode, or say that they
would.
"""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import soundfile
from PIL import Image


def jpeg_of_scans(num_scans: int, side: int = 2048) -> bytes:
    """A progressive JPEG, grey, whose scans but the first say that nothing of a block is left: the
    runs of such blocks take a few bytes.
    """

    def segment(marker: int, body: bytes) -> bytes:
        return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body

    def table(kind: int, symbol: int) -> bytes:
        return segment(0xC4, bytes([kind, 1, *[0] * 15, symbol]))  # one code, of one bit

    num_blocks = (side // 8) ** 2
    runs = -(-num_blocks // 32767)
    bits = ("0" + "1" * 14) * runs  # the symbol 0xE0: a run of 2**14 blocks and more
    bits += "1" * (-len(bits) % 8)
    empty = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    first = segment(0xDA, bytes([1, 1, 0, 0, 0, 0])) + bytes(num_blocks // 8)
    others = (segment(0xDA, bytes([1, 1, 0, 1, 63, 0])) + empty) * (num_scans - 1)
    frame = segment(0xC2, struct.pack(">BHHB3B", 8, side, side, 1, 1, 0x11, 0))
    tables = segment(0xDB, bytes([0, *[16] * 64])) + table(0x00, 0x00) + table(0x10, 0xE0)
    return b"\xff\xd8" + tables + frame + first + others + b"\xff\xd9"


def png_of(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG that says to be of so many pixels of RGB, and has next to none."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    ends = ((b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in ((b"IHDR", header), *chunks, *ends)
    )


def png_with_text(num_bytes: int) -> bytes:
    """A PNG of a few bytes that holds a text of so many."""
    text = zlib.compress(b"a" * num_bytes)
    return png_of(8, 8, (b"zTXt", b"Comment\0\0" + text))


def tiff(*tags: tuple[int, int, int, int], body: bytes = b"") -> bytes:
    """A TIFF of (tag, type, count, value or place); its body begins behind them."""
    entries = b"".join(struct.pack("<HHII", *tag) for tag in sorted(tags))
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + body


def tiff_of_tile(side: int, content: bytes = b"") -> bytes:
    """A TIFF of 8 x 8 pixels of grey in one deflated tile of ``side`` x ``side``."""
    values = {256: 8, 257: 8, 258: 8, 259: 8, 262: 1, 277: 1, 322: side, 323: side}
    body = zlib.compress(content)
    place = 14 + 12 * (len(values) + 2)
    tags = [(tag, 4, 1, value) for tag, value in values.items()]
    return tiff(*tags, (324, 4, 1, place), (325, 4, 1, len(body)), body=body)


def webp_of_frame(width: int, height: int) -> bytes:
    """A WebP of a few bytes whose frame says that it has so many pixels."""
    file = io.BytesIO()
    Image.new("L", (16, 16)).save(file, "WEBP")
    sizes = struct.pack("<HH", 16, 16)
    return file.getvalue().replace(sizes, struct.pack("<HH", width, height), 1)


def gif_of_frame(width: int, height: int) -> bytes:
    """A GIF whose screen is of 8 x 8 pixels and whose first frame is larger."""
    file = io.BytesIO()
    Image.new("P", (8, 8)).save(file, format="GIF")
    found = bytearray(file.getvalue())
    at = found.index(b",", 13) + 5
    found[at : at + 4] = struct.pack("<HH", width, height)
    return bytes(found)


def sound_of(
    num_frames: int,
    rate: int,
    num_channels: int,
    file_format: str = "FLAC",
    kind: str | None = None,
) -> bytes:
    """Silence, which takes few bytes."""
    file = io.BytesIO()
    with soundfile.SoundFile(
        file, "w", rate, num_channels, format=file_format, subtype=kind
    ) as opened:
        for start in range(0, num_frames, 2**16):
            length = min(2**16, num_frames - start)
            opened.write(np.zeros((length, num_channels), np.float32))
    return file.getvalue()


def flac_of(num_frames: int, rate: int = 16_000, num_channels: int = 1) -> bytes:
    """A FLAC file that says to have so many, and has few; 0 is unknown, as where a pipe got it."""
    found = bytearray(sound_of(1600, rate, num_channels))
    found[22:26] = num_frames.to_bytes(4, "big")  # the last bits of STREAMINFO's number of samples
    return bytes(found)
