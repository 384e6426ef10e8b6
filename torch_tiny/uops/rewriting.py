"""tinygrad's graph rewriting with a memory, while we compile.

Without a context a rule's answer depends on the node alone, and nodes are shared: what a set of
rules has made of one is not worked out again by the next pass or for the next kernel. The order in
which rules are tried is tinygrad's. A program's own use of tinygrad goes on without.
"""

import functools
import inspect
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tinygrad.helpers import Context
from tinygrad.uop import Ops
from tinygrad.uop.ops import (
    REWRITE_STACK_LIMIT,
    PatternMatcher,
    RewriteContext,
    UOp,
    _rebuild_dtype,
)

_SETTINGS = {"SCACHE": 0, "SPEC": 0, "PCONTIG": 0, "SPLIT_REDUCEOP": 0}


@contextmanager
def compiling() -> Iterator[None]:
    """What is rewritten meanwhile, by this thread, is remembered; tinygrad's settings are ours."""
    if getattr(_this_thread, "memory", None) is not None:
        yield
        return
    _this_thread.memory = {}
    try:
        with Context(**_SETTINGS):  # type: ignore[no-untyped-call]
            yield
    finally:
        _this_thread.memory = None
        _forget()


MOST_REMEMBERED = 4096


def _forget() -> None:
    """tinygrad remembers without end what some functions made of nodes, and so all the nodes."""
    for module in [m for name, m in list(sys.modules.items()) if name.startswith("tinygrad.")]:
        for one in list(vars(module).values()):
            is_memory = isinstance(one, functools._lru_cache_wrapper)
            if is_memory and one.cache_info().currsize > MOST_REMEMBERED:
                one.cache_clear()


_this_thread = threading.local()
_without_memory = RewriteContext.unified_rewrite


def _with_memory(self: Any, root: UOp) -> UOp:
    memory: dict[PatternMatcher, dict[UOp, UOp]] | None = getattr(_this_thread, "memory", None)
    asks_more = self.bpm is not None or self.ctx is not None or self.enter_calls
    if memory is None or self.pm is None or asks_more:
        return _without_memory(self, root)
    return _rewritten(root, self.pm, memory.setdefault(self.pm, {}))


def _rewritten(root: UOp, rules: PatternMatcher, done: dict[UOp, UOp]) -> UOp:
    """First all operands, then the node: rebuilt if they changed, else as the rules say."""
    stack = [(root, root)]  # nodes, and what they have become so far
    while stack:
        if len(stack) > REWRITE_STACK_LIMIT:
            raise RuntimeError("rules that undo each other")
        node, now = stack[-1]
        if node in done:
            stack.pop()
        elif now is not node:
            if now in done:
                done[node] = done[now]
            else:
                stack.append((now, now))
        else:
            unseen, operands = _operands(node)
            missing = [(operand, operand) for operand in reversed(operands) if operand not in done]
            if missing:
                stack += missing
                continue
            source = (*unseen, *(done[operand] for operand in operands))
            if source != node.src:
                dtype = _rebuild_dtype(node, source)
                after: UOp | None = UOp(node.op, dtype, source, node.arg, node.tag)
            else:
                after = rules.rewrite(node)
            if after is None:
                done[node] = node
            else:
                stack[-1] = (node, after)
    return done[root]


def _operands(node: UOp) -> tuple[tuple[UOp, ...], tuple[UOp, ...]]:
    """What is not looked into, the body of a call, and the others."""
    is_call = node.op is Ops.CALL and node.src[0].op in UOp._OPAQUE_CALL_BODIES
    bodies = int(is_call or node.op is Ops.FUNCTION)
    return node.src[:bodies], node.src[bodies:]


def _check() -> None:
    """What is replaced has to be what is known here."""
    fields = list(inspect.signature(RewriteContext.__init__).parameters)
    given = list(inspect.signature(RewriteContext.unified_rewrite).parameters)
    if fields != ["self", "pm", "bpm", "ctx", "enter_calls"] or given != ["self", "root"]:
        raise ImportError("this tinygrad rewrites graphs in another way")


_check()
RewriteContext.unified_rewrite = _with_memory  # type: ignore[method-assign]
