"""Questions to the database, answered with typed rows."""
