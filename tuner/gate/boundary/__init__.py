"""The boundary between the judge and files that nobody vouches for: processes of their own, and plain data between."""
