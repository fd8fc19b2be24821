"""The judge offered to others: verdicts on files over HTTP, signed."""
