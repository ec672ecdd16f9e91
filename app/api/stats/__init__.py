"""`tandem.stats` of answers."""
