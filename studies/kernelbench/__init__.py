"""Problems of KernelBench's levels 1 and 2, each with a kernel made of a block (docs/exam.md)."""
