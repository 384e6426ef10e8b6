"""How many items of each check passed, from pytest's reports."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_ITEM = re.compile(r"test_opdb\.py::test_(\w+)\[.+-(\w+)\]$")
_OUTCOMES = ("passed", "xfailed", "failed", "skipped")


def lines(stats: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """A table of the checks; nothing where no item of the database ran."""
    counts: dict[tuple[str, bool], Counter[str]] = {}
    for outcome in _OUTCOMES:
        for report in stats.get(outcome, ()):
            if found := _ITEM.search(report.nodeid):
                key = (found[1], found[2] == "float32")
                counts.setdefault(key, Counter())[outcome] += 1
    for wanted, title in ((True, "op_db, float32"), (False, "op_db, other dtypes")):
        rows = {check: n for (check, plain), n in counts.items() if plain == wanted}
        if not rows:
            continue
        rows["all checks"] = sum(rows.values(), Counter())
        yield ""
        yield f"{title:<22}{'applicable':>12}{'passed':>9}{'known gaps':>12}{'failed':>9}{'n/a':>6}"
        for check, n in rows.items():
            applicable = n["passed"] + n["xfailed"] + n["failed"]
            share = n["passed"] / applicable if applicable else 0.0
            yield (f"{check:<22}{applicable:>12}{n['passed']:>9}{n['xfailed']:>12}"
                   f"{n['failed']:>9}{n['skipped']:>6}{share:>10.2%}")  # fmt: skip
