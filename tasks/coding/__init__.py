"""Repairing code in a REPL, rewarded by tests that run in a separate service."""
