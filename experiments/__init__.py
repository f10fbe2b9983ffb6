"""What boltdp does on public data, one file a question."""
