"""A model in two places: its two ends at a device, its middle in the cloud (HAT's U-shape)."""
