"""The bytes of a shared object under a name that dlopen takes, with nothing left on any disk."""

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_numbers = itertools.count(1)


@contextmanager
def as_file(library: bytes) -> Iterator[str]:
    """A path that lives as long as the context. No path is given twice.

    dlopen takes a name that it knows for the library that it loaded under it, whatever is there.
    """
    try:
        file = os.memfd_create("torch_tiny")
    except OSError:  # a system that does not let memory be executed so
        with tempfile.NamedTemporaryFile(prefix="torch_tiny_", suffix=".so") as named:
            named.write(library)
            named.flush()
            yield named.name
        return
    try:
        with os.fdopen(file, "wb", closefd=False) as stream:
            stream.write(library)
        # The same file for the system, another name for dlopen: "./" and ".//" as 1 and 0.
        spelled = "".join("./" if bit == "1" else ".//" for bit in f"{next(_numbers):b}")
        yield f"/proc/self/fd/{spelled}{file}"
    finally:
        os.close(file)
