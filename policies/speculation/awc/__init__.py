"""Adaptive window control as in DSD's paper (section 4): a small learned network chooses the window, a stabiliser keeps
it from jumping. Importing this registers the window policy "awc-paper"."""
