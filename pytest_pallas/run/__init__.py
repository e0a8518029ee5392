"""From a kernel to a record: what is collected, drawn, run and added up."""
