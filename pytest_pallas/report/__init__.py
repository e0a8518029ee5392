"""Reports, built from records only: terminal, JSON, and the way from worker to controller."""
