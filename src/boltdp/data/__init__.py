"""What is public about the data, and how rows become numbers."""
