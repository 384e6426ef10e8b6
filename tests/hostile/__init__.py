"""Hostile values through chains of two and three operators, compiled, against PyTorch's CPU."""
