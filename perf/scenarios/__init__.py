"""Small measurements of one question each: ``python -m perf.scenarios NAME``.

comparisons.py    which of several ways to serve or ask is faster, as ratios within a round
disturbances.py   what callers notice of something that is done meanwhile
"""
