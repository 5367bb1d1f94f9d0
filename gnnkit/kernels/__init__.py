"""What every kernel is built from: compiling, raw loads and copies, and the random stream."""
