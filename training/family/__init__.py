"""How the embedded model family is made: its world, tokenizers, training and evaluation."""
