"""Training of a split model's adapter: its texts, its distillation, and its evaluation."""
