"""The results database: its tables, the connections to it, who writes and reads it, and the questions to it."""
