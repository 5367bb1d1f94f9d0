"""What output in a notebook may take."""

MAX_HTML_BYTES = 20_000
