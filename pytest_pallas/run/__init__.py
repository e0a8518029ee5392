"""From a kernel to a record: what is collected, bound, drawn, run and added up."""
