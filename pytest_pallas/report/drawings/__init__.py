"""Pictures as inline SVG, from ``Record.pictures`` only: a function each, and no library."""
