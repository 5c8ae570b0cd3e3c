"""The engine link: forwards requests from one model's process to the engine in another's, over a
Unix socket.
"""
