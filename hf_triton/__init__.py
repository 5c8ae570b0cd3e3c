"""What serves: what runs inside Triton, and around it ports, a supervisor and the command line.

The model.py of a generated folder imports its task's classes from here.
"""
