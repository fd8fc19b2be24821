"""What a server that processes are forked from imports last: none of them then has its garbage to look through.

Python's collector writes to every object that it looks at, and so copies every page that a fork shares with its server:
half a second of each process that is forked from one with torch.
"""

import atexit
import gc

gc.collect()
gc.freeze()
atexit.register(
    gc.unfreeze
)  # in the server itself: extension modules take what is left at the end for leaks, and say so
