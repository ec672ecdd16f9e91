"""Starting, finding and stopping a local Tandem."""
