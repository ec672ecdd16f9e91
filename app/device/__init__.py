"""A device's own program: `tandem device`. It needs no Ray."""
