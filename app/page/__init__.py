"""The page for people with a browser."""
