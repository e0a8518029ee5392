"""What outlives a run: its tests as they end, and a run that is taken up again."""
