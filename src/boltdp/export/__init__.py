"""A released model in other people's words: SQL, scikit-learn, a table of PostgreSQL, a page, a picture."""
