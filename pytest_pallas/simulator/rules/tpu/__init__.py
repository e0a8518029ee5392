"""Rules: what only TPUs have."""
