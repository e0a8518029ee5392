"""Looking at a run: what was loaded, when what happened, and a debugger."""
