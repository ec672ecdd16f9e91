"""The torch engine: a model's forward pass, sampling and verification."""
