"""A client of the API, for the terminal and for Python programs."""
