"""The implementations ("sides") that `benchmarks.backend` compares, each in its own process, some with their own
Python.
"""
