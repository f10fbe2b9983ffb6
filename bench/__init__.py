"""Speed and size, as ratios that hold on any machine, each with its target."""
