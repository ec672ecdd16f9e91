"""Routes for operators: keys and accounts."""
