"""The PostgreSQL worker, which trains models for roles without access to the rows."""
