"""Reports, built from records only: terminal, JSON, HTML; and the way from worker to controller."""
