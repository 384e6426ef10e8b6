"""The environment that tests run in; imported before torch, which loads the device at once."""

import os

# The memory of tiny:0: "cpu", "cuda", or a portable kind, whose oracle is the CPU.
KIND = os.environ.get("TORCH_TINY_DEVICES", "cpu").partition(",")[0].partition(":")[0]

# Compiling in the background has tests of its own; it would take the cores from all others.
os.environ.setdefault("TORCH_TINY_ENGINE", "aten")

# The oracle on CUDA memory is plain CUDA, its random numbers too; others have tests of their own.
os.environ.setdefault("TORCH_TINY_RNG", "host" if KIND == "cuda" else "default")

# Rounding to ten bits would hide differences; processes started by tests inherit this.
os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
