"""Devices that only tinygrad drives: their memory, their kernels, and the way through the host."""
