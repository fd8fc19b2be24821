"""Studies: their files, what they tune and on which workers, how they run, and what is built of their results ahead."""
