"""What algorithms share: the protocol, passes of SGD, noise in every update, the solver, random samples."""
