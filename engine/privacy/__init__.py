"""Privacy: finding what is private in a text, and putting stand-ins in its place until the answer is back."""
