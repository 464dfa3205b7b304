"""What the user writes, and the topology it becomes."""
