"""From a model to loop nests in CUDA C++: torch's own compiler lowers and fuses, and what it fuses becomes passes."""
