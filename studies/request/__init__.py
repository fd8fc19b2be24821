"""The options of commands, each declared once, for the command line, Python, study files and agents alike."""
