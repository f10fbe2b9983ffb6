"""An audit that anyone can run, without private rows: what is claimed, attacked."""
