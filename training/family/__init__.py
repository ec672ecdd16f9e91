"""Training of the embedded model family: its world, tokenizers, training and evaluation."""
