"""Everything that gnnkit parses, fed with what almost is what it should be: only errors of gnnkit come out, in bounded memory and time."""
