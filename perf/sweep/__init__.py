"""Measures served models at many loads, by perf_analyzer."""
