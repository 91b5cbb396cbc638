"""Steps of the coding task."""
