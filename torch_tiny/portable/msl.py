"""Functions that Metal's library does not have, or not to the last bits: those of WGSL, translated.

Metal's source is C++: types have other names, a number without a suffix may be a double, and a
function has to stand before those that call it.
"""

import re

from torch_tiny.portable import wgsl


def needed(text: str) -> str:
    """The functions that a text calls, each after those that it calls itself."""
    return "\n".join(map(translated, wgsl.needed(text).values()))


def translated(text: str) -> str:
    """A function of WGSL in Metal's words."""
    head, body = text.split(" {", 1)
    match = re.fullmatch(r"fn (\w+)\((.*)\) -> ([\w<>]+)", head)
    assert match is not None, head
    name, given, result = match.groups()
    typed = (one.split(": ") for one in given.split(", ") if one)
    parameters = ", ".join(f"{kind} {one}" for one, kind in typed)
    text = f"static {result} {name}({parameters}) {{{body}"
    for pattern, new in _WORDS:
        text = re.sub(pattern, new, text)
    return text


_WORDS = (
    (r"\blet (?=\w+ =)", "const auto "),
    (r"\bvar (?=\w+ =)", "auto "),
    (r"\bvec(\d)<f32>", r"float\1"),
    (r"\bvec(\d)<u32>", r"uint\1"),
    (r"\bf32\b", "float"),
    (r"\bi32\b", "int"),
    (r"\bu32\b", "uint"),
    (r"\bbitcast<", "as_type<"),
    (r"\bround\(", "rint("),  # to even
    (r"\babs\(", "fabs("),
    (r"\bcountLeadingZeros\(", "clz("),
    (r"\b(\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+)\b", r"\1f"),
)
