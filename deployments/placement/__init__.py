"""Placement: which device or expander writes which sentence of a sketch, with which model, and when."""
