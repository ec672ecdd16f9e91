"""Results of a simulation: figures per request, analysis and plots."""
