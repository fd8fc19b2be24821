"""The results database: its tables, the connections to it, who writes and reads it, and the questions to it.

Whatever reads or writes one raises a `DatabaseError` of one line where it cannot be used, is locked or full, or holds
what tunebench does not write. Docstrings name other errors, and a `DatabaseError` only where it has another reason.
"""
