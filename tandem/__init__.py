"""Language models served from the edge and the cloud together, on one answer."""
