"""The foundations of every kernel: compiling, raw loads and copies, and the random stream."""
