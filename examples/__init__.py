"""Small things to copy."""
