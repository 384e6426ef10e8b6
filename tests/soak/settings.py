"""How many take part; known before torch is imported."""

THREADS = 4
DEVICES = THREADS + 1
"""One for each thread, whose errors are its own, and one that all of them use."""
MARK = "TORCH_TINY_SOAK"
"""A variable of the environment that tells the processes of a soak from others."""
UNWEIGHED = "TORCH_TINY_SOAK_UNWEIGHED"
"""Another one, set where memory may grow: a sanitizer keeps what was freed."""
