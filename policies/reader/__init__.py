"""The reader's side: quality of experience, and how long a stall may take."""
