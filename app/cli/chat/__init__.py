"""`tandem chat`: the conversation, its commands, what it keeps on disk, and its prompt."""
