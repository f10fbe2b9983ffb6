"""What is declared public about the data: columns, target, bounds."""
