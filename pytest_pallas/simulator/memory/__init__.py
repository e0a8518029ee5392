"""Memory: references, windows of them, and what a chip has of it."""
