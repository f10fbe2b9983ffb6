"""Files that the package reads and writes, whatever they contain."""
