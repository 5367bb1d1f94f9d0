"""What holds a loop back and what to change: measured while it runs, said in one sentence, tried out by ``autotune``."""

from gnnkit.loader.advice.measurement import Measurement
from gnnkit.loader.advice.measuring import measure
from gnnkit.loader.advice.rules import Advice, advise

__all__ = ["Advice", "Measurement", "advise", "measure"]
