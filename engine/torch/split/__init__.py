"""Split models in torch: bundles of the outer part, checksums, runners of both parts."""
