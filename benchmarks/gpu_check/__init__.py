"""Check of the torch backend on a GPU that needs little software: `python -m benchmarks.gpu_check`."""
