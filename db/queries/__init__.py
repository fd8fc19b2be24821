"""Queries of the database, answered with typed rows."""
