"""The reader: quality of experience, and timeouts of stalled answers."""
