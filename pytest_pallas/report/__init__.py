"""Reports, built from records only: terminal, JSON, HTML; the transfer between processes."""
