"""Finds the limit of a loop and what to change: measured while it runs, put into one sentence, tried out by ``autotune``."""

from gnnkit.loader.advice.measuring import LoopMeasurement, measure
from gnnkit.loader.advice.rules import Advice, advise

__all__ = ["Advice", "LoopMeasurement", "advise", "measure"]
