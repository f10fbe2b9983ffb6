"""PostgreSQL beyond the engine: the extension, released models in the database, and a private server to try it on."""
