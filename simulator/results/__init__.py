"""What a simulation answers: requests' figures, their analysis and plots."""
