"""Rules: each element on its own."""
