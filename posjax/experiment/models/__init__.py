"""Models: one file each. They compose schemes and name none."""
