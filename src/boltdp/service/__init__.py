"""The PostgreSQL worker, which trains for roles that may not see the rows."""
