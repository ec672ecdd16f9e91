"""The two parts of a split model as engines: the outer part with tokens, the middle with hidden states."""
