"""The last import of a server that processes are forked from: none of them then has its garbage to look through.

Python's collector writes to every object that it looks at, and so copies every page that a fork shares with its server:
half a second of each process that is forked from one with torch.
"""

import atexit
import gc
import os

from tunebench.tuner import server_start

gc.freeze()
server_start.end()
# In the server itself, which holds nothing that has to be let go of: Python takes seconds to take torch apart, in which
# whoever reads a command's output would wait for its end.
atexit.register(os._exit, 0)
