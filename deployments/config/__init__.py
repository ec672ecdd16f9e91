"""Settings of the deployments, their errors in plain words, and changes while they run."""
