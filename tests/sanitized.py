"""The core under ThreadSanitizer, or under AddressSanitizer and UBSan: make tsan, make asan.

    python -m tests.sanitized thread --minutes 10       the tests below, then a soak
    python -m tests.sanitized address tests/test_x.py   these tests alone, with options for pytest

Only the core is instrumented; Python and torch are not. So the runtime comes first by LD_PRELOAD,
and what it says of their frames alone is left out. Findings go to files, as a test may end its
process in any way; one finding fails the run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Threads, errors, processes, memory: where lifetimes and locks matter.
TESTS = (
    "tests/test_stress.py",
    "tests/test_threads.py",
    "tests/test_errors.py",
    "tests/test_process.py",
    "tests/test_memory.py",
    "tests/test_engine.py",
    "tests/test_metrics.py",
    "tests/test_regressions.py",
    "tests/test_views.py",
    "tests/test_lists.py",
    "tests/test_interop.py",
    "tests/test_autograd.py",
    "tests/test_programs.py",
    "tests/test_custom_ops.py",
    "tests/test_switches.py",
)
RUNTIMES = {"thread": ("tsan",), "address": ("asan", "ubsan")}
# A fault is told with its place in the core, which Python's own handler does not know.
FAULTS = {"allow_user_segv_handler": "0"}
OPTIONS = {
    "TSAN_OPTIONS": {
        **FAULTS,
        "ignore_noninstrumented_modules": "1",
        "die_after_fork": "0",
        "second_deadlock_stack": "1",
        "allocator_may_return_null": "1",
        "suppressions": str(ROOT / "tests" / "tsan.supp"),
    },
    # Python frees little when it ends.
    "ASAN_OPTIONS": {**FAULTS, "detect_leaks": "0", "allocator_may_return_null": "1"},
    "UBSAN_OPTIONS": {"print_stacktrace": "1"},
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sanitized", description=__doc__)
    parser.add_argument("sanitizer", choices=RUNTIMES)
    parser.add_argument("--minutes", type=float, default=0, help="of soak, after the tests")
    args, options = parser.parse_known_args()
    tree = ROOT / "build" / args.sanitizer / "tree"
    reports = tree.parent / "reports"
    make_tree(tree)
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    path = os.pathsep.join(filter(None, (str(tree), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, **settings(args.sanitizer, reports), "PYTHONPATH": path}
    failed = not checks_locks(tree, environment)
    failed |= run(
        ["-m", "pytest", "-p", "no:cacheprovider", *(options or TESTS)], tree, environment
    )
    if args.minutes:
        soak = ["-m", "tests.soak", "--minutes", str(args.minutes), "--unweighed"]
        failed |= run(soak, tree, environment)
    found = [said for report in sorted(reports.iterdir()) if (said := findings(report))]
    print(*found, sep="\n")
    print(f"{len(found)} processes with findings of the {args.sanitizer} sanitizer")
    return 1 if failed or found else 0


def checks_locks(tree: Path, environment: dict[str, str]) -> bool:
    """Whether the core ends a thread that waits for a lock while it holds the GIL."""
    fault = [sys.executable, "-c", "from torch_tiny import _C; _C.wait_with_the_gil()"]
    done = subprocess.run(fault, cwd=tree, env=environment, capture_output=True, text=True)
    is_told = "who holds the GIL waits for Running" in done.stderr
    if not is_told:
        print("the order of locks is not checked:", done.stderr)
    return is_told


def findings(report: Path) -> str:
    """Without the requests for too much memory that tests make, which only warn."""
    lines = report.read_text(errors="replace").splitlines()
    return "\n".join(line for line in lines if "failed to allocate 0x" not in line).strip()


def make_tree(tree: Path) -> None:
    """The checkout again, beside the package with the instrumented core that setup.py built."""
    for folder in ("tests", "examples", "docs"):
        shutil.rmtree(tree / folder, ignore_errors=True)
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / file, tree / file)


def settings(sanitizer: str, reports: Path) -> dict[str, str]:
    """The environment that every process of a run inherits."""
    libraries = [
        subprocess.check_output(["gcc", f"-print-file-name=lib{name}.so"], text=True).strip()
        for name in RUNTIMES[sanitizer]
    ]
    # The status stays the program's own: tests ask for it.
    written = {"log_path": str(reports / "report"), "exitcode": "0"}
    options = {
        variable: ":".join(f"{key}={value}" for key, value in (given | written).items())
        for variable, given in OPTIONS.items()
    }
    return {"LD_PRELOAD": ":".join(libraries), "TORCH_TINY_SANITIZED": sanitizer, **options}


def run(command: list[str], tree: Path, environment: dict[str, str]) -> bool:
    """Whether it failed. Older runtimes cannot work where the kernel puts random addresses."""
    fixed = ["setarch", "-R", sys.executable, *command]
    return subprocess.run(fixed, cwd=tree, env=environment, check=False).returncode != 0


if __name__ == "__main__":
    sys.exit(main())
