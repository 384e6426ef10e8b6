"""tinygrad's graph rewriting with a memory, while we compile.

Without a context a rule's answer depends on the node alone, and nodes are shared: what a set of
rules has made of one is noted on it, and not worked out again by the next pass or for the next
kernel. The order in which rules are tried is tinygrad's. A program's own use of tinygrad, which may
change settings that rules read, goes on without.
"""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tinygrad.helpers import Context
from tinygrad.uop import Ops
from tinygrad.uop.ops import PatternMatcher, RewriteContext, UOp, _rebuild_dtype

_SETTINGS = {"SCACHE": 0, "SPEC": 0, "PCONTIG": 0, "SPLIT_REDUCEOP": 0}


@contextmanager
def compiling() -> Iterator[None]:
    """What is rewritten meanwhile, by this thread, is remembered; tinygrad's settings are ours."""
    before = getattr(_this_thread, "remembers", False)
    _this_thread.remembers = True
    try:
        with Context(**_SETTINGS):  # type: ignore[no-untyped-call]
            yield
    finally:
        _this_thread.remembers = before


_this_thread = threading.local()
_without_memory = RewriteContext.unified_rewrite
_numbers = itertools.count()


def _with_memory(self: Any, root: UOp) -> UOp:
    rules = self.pm
    asks_more = self.bpm is not None or self.ctx is not None or self.enter_calls
    if rules is None or asks_more or not getattr(_this_thread, "remembers", False):
        return _without_memory(self, root)
    name = _name_of(rules)
    known: UOp | None = root.__dict__.get(name)
    return _rewritten(root, rules, name) if known is None else known


def _name_of(rules: PatternMatcher) -> str:
    """Under which a node knows what became of it."""
    attributes = rules.__dict__
    if "_memory" not in attributes:
        attributes["_memory"] = f"_rewritten_{next(_numbers)}"
    name: str = attributes["_memory"]
    return name


def _rewritten(root: UOp, rules: PatternMatcher, name: str) -> UOp:
    """First all operands, then the node: rebuilt if they changed, else as the rules say."""
    done: dict[UOp, UOp] = {}
    stack: list[tuple[UOp, int, UOp]] = [(root, 0, root)]
    seen = {root}
    waiting: dict[UOp, list[tuple[UOp, int, UOp]]] = {}

    def finish(node: UOp, result: UOp) -> None:
        done[node] = result
        node.__dict__[name] = result
        if node in waiting:
            stack.extend(waiting.pop(node))

    while stack:
        node, stage, now = stack.pop()
        if node in done:
            continue
        if stage == _BEGUN:
            if (known := node.__dict__.get(name)) is not None:
                finish(node, known)
                continue
            stack.append((node, _OPERANDS, node))
            if _is_opaque(node):  # what is called is not looked into
                done[node.src[0]] = node.src[0]
            for operand in reversed(node.src):
                if operand not in seen:
                    seen.add(operand)
                    stack.append((operand, _BEGUN, operand))
        elif stage == _OPERANDS:
            operands = []
            for operand in now.src:
                if (ready := done.get(operand)) is None:
                    waiting.setdefault(operand, []).append((node, _OPERANDS, now))
                    break
                operands.append(ready)
            else:
                source = tuple(operands)
                if source != now.src:
                    dtype = _rebuild_dtype(now, source)
                    after: UOp | None = UOp(now.op, dtype, source, now.arg, now.tag)
                else:
                    after = rules.rewrite(now)
                if after is None:
                    finish(node, now)
                else:
                    stack.append((node, _REPLACED, after))
                    stack.append((after, _BEGUN, after))
        elif (ready := done.get(now)) is None:
            waiting.setdefault(now, []).append((node, _REPLACED, now))
        else:
            finish(node, ready)
    return done[root]


_BEGUN, _OPERANDS, _REPLACED = range(3)


def _is_opaque(node: UOp) -> bool:
    if node.op is Ops.FUNCTION:
        return True
    return node.op is Ops.CALL and node.src[0].op in UOp._OPAQUE_CALL_BODIES


RewriteContext.unified_rewrite = _with_memory  # type: ignore[method-assign]
