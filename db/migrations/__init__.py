"""The revisions of the tables, for Alembic."""
