"""Finds the limit of a loop and what to change: measured while it runs, put into one sentence and into the call that follows it."""

from gnnkit.loader.advice.measuring import Advice, LoopMeasurement, advise, measure

__all__ = ["Advice", "LoopMeasurement", "advise", "measure"]
