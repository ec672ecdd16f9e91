"""`tandem deploy`: changes of what `tandem up` has started."""
