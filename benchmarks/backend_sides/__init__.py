"""What `benchmarks.backend` measures, each side in a process of its own, some with a Python of their own."""
