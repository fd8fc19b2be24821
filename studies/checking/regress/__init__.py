"""Did a commit make a kernel slower? Two git revisions of a repository, timed against each other in one run."""
