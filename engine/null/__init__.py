"""An engine without a model."""
