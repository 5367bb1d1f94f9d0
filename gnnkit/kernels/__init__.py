"""The base of every kernel: compiling, raw loads and copies, and the random stream."""
