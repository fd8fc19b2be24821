"""What commands take: each option declared once, for the command line, Python, study files and agents alike."""
