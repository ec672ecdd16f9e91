"""The invented encyclopedia: its world, and questions with answers about it."""
