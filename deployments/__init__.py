"""One Serve deployment a file, and the plans that drive their engines for a request."""
