"""Benchmarks: workloads on device="tiny" beside eager PyTorch, as ratios of their times.

`python -m bench --help` tells how to run them; bench/workloads.py is the table of what is run.
"""
