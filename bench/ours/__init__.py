"""holdfast's side of each measurement, through the interface that its users have."""
