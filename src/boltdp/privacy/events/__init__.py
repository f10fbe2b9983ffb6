"""What was spent: one frozen event per mechanism, with its proof beside it."""
