"""What several events spend together."""
