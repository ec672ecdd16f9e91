"""Mode sketch: the target writes a sketch, small models write the answer from it."""
