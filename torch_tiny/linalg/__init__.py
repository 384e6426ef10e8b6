"""Factorizations written in UOps."""
