"""Models in files: architectures, precision, folders, the hub."""
