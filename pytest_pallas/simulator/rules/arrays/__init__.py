"""Rules: whole arrays."""
