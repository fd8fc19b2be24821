"""Opening, refusing, creating and upgrading a database."""
