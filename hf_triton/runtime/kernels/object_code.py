"""Object files of machine code, as far as it takes to know what else they need (ELF, 64 bits:
https://refspecs.linuxfoundation.org/elf/elf.pdf).
"""

from __future__ import annotations

import struct

_SYMBOLS = 2  # SHT_SYMTAB
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


def undefined_symbols(code: bytes) -> list[str]:
    """The names that an object file uses and doesn't define. Raises ValueError of other bytes."""
    if not code.startswith(b"\x7fELF\x02\x01"):
        raise ValueError("no object file of this kind of processor")
    offset, size, count = (_HEADER.unpack_from(code)[index] for index in (6, 11, 12))
    sections = [_SECTION.unpack_from(code, offset + n * size) for n in range(count)]
    names = []
    for _, kind, _, _, begin, length, link, _, _, _ in sections:
        texts = sections[link][4]
        for place in range(begin, begin + length, _SYMBOL.size) if kind == _SYMBOLS else ():
            name, _, _, section, _, _ = _SYMBOL.unpack_from(code, place)
            if name and not section:
                names.append(code[texts + name : code.index(b"\0", texts + name)].decode())
    return names
