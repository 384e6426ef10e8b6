"""Written by setup.py beside the core: what torch_tiny._C was compiled with."""

TORCH: str
COMPILER: str
