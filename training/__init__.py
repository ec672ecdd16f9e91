"""Training of weights: the embedded family, adapters of split models, AWC's network."""
