"""What holds a loop back and what to change: measured while it runs, said in one sentence, tried out by ``autotune``."""

from gnnkit.loader.advice.measuring import Measurement, measure
from gnnkit.loader.advice.rules import Advice, advise

__all__ = ["Advice", "Measurement", "advise", "measure"]
