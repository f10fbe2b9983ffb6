"""From cells to features: the encoding plan and what runs it."""
