"""Which of several ways to serve or ask is faster, as ratios within a round:
``python -m perf.scenarios NAME``.
"""
