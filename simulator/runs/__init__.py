"""Running one simulation, a sweep of them, or many as Ray tasks."""
