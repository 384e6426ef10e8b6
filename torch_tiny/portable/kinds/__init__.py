"""One file per kind of portable device; its name is the name in TORCH_TINY_DEVICES."""
