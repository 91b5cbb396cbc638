"""A folder with everything that a machine with a GPU, torch and no network needs to run the torch backend's checks and trainings."""
