"""The control plane: the router and the scheduler, and how others call them."""
