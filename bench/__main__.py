"""`python -m bench`, `python -m bench compile`: sets up the process before torch is imported."""

import os
import sys

ENVIRONMENT = {
    # Threads that spin while they wait take the cores from whichever side is measured next.
    "OMP_WAIT_POLICY": "passive",
    # Opponents are measured without tiny wherever they have a process of their own.
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
}

if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **ENVIRONMENT})

    if sys.argv[1:2] == ["compile"]:
        del sys.argv[1]
        from bench.compiling import main
    else:
        from bench.cli import main

    sys.exit(main())
