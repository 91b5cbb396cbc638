"""Further tasks for the trainer, one package each."""
