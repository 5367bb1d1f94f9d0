"""Finds the limit of a loop and what to change: measured while it runs, put into one sentence, tried out by ``autotune``."""

from gnnkit.loader.advice.measuring import Advice, LoopMeasurement, advise, measure

__all__ = ["Advice", "LoopMeasurement", "advise", "measure"]
