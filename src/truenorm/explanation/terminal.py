"""Make text from files safe to print: it must not move the cursor, change colours or reorder the line."""

from __future__ import annotations

import re

# Control characters, line and paragraph separators, lone surrogates, and the marks that reorder a line (bidirectional
# embeddings, overrides and isolates). Joiners stay: many scripts and emoji need them.
_UNSAFE = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Replace what a terminal would act on by its code, as in JSON: "\u001b".

    A byte of a file name that is not UTF-8 is shown as "\xff".

    >>> print(printable("caf\u00e9 \x1b[31mred"))
    café \u001b[31mred
    """
    return _UNSAFE.sub(lambda found: _escaped(ord(found[0])), text)


def _escaped(code: int) -> str:
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"
