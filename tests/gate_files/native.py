"""Files of the set that bring code for a compiler: C by ctypes, which takes a tenth of a second, and C++ by torch."""

import textwrap

from tests.gate_files.entry import forward

NATIVE = """
def native(source):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernel.so")
        command = ["g++", "-x", "c++", "-O1", "-shared", "-fPIC", "-", "-o", path]
        subprocess.run(command, input=source.encode(), check=True)
        return ctypes.CDLL(path)
"""
"""A function of a submission that makes a library of C."""


def extension(source: str, body: str, **more: str) -> str:
    """A `ModelNew` whose work a function `run` of an inline extension does."""
    made = f"""
from torch.utils.cpp_extension import load_inline

EXTENSION = load_inline("gate_file", {textwrap.dedent(source)!r}, functions=["run"], extra_cflags=["-O0"])
"""
    return forward(body, before=made, **more)
