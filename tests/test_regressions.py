"""Programs that once differed from the CPU, as `python -m tests.programs` printed them."""
