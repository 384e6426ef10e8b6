"""`python -m torch_tiny` is the command `torch-tiny`, where that is not installed."""

from torch_tiny.cli import main

main()
