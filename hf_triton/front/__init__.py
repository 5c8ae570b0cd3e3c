"""The thin model beside a streaming one: passes each request on to the engine's process and answers
it once. No task of its own, so it has no config.pbtxt.j2.
"""
