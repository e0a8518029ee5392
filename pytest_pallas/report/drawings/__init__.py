"""Pictures as inline SVG, from ``Record.pictures`` only: one function for each, no library."""
