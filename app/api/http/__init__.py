"""HTTP: errors, bodies, authentication, and the backend that routes talk to."""
