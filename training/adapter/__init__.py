"""How the adapter of a split model is made: what it learns from, its distillation, and what its drafts are worth."""
