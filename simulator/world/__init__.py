"""A simulated deployment: servers, pools, devices and the network between them."""
