"""The core's folders stand in one order, and no file includes from a later one."""

import re
from pathlib import Path

CSRC = Path(__file__).parent.parent / "torch_tiny" / "csrc"
# What there is; memory; random numbers; a call and a trace; how to run it; running it; recording
# it; operators with something of their own; what PyTorch asks a device; the Python face.
ROOMS = ("base", "memory", "random", "core", "plan", "run", "record", "ops", "hooks", "python")
INCLUDE = re.compile(r'^#include "(\w+)/(\w+\.h)"', re.MULTILINE)


def test_every_file_is_in_a_room() -> None:
    found = {path.name for path in CSRC.iterdir()}
    assert found == set(ROOMS)


def test_no_file_includes_from_a_later_room() -> None:
    upward = [
        f"{path.relative_to(CSRC)} includes {room}/{name}"
        for path in sorted(CSRC.rglob("*.*"))
        for room, name in INCLUDE.findall(path.read_text())
        if ROOMS.index(room) > ROOMS.index(path.parent.name)
    ]
    assert not upward, "\n".join(upward)


def test_every_include_of_ours_names_its_room() -> None:
    for path in CSRC.rglob("*.*"):
        ours = re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE)
        assert all((CSRC / name).is_file() and "/" in name for name in ours), path
