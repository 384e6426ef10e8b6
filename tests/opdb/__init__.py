"""Every operator of PyTorch's own operator database, on the device against its oracle.

`items` lists what to check, `checks` says how, `samples` brings one call to both devices.
"""
