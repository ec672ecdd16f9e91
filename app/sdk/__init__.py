"""Tandem from Python: start it, ask it, simulate it. `import tandem` is all of this."""
