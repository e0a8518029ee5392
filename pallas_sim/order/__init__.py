"""What is found in the recording of a run: accesses that nothing orders, blocks that overlap."""
