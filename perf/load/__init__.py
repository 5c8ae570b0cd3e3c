"""The load generator of all measurements: sends requests, times and checks their answers.

It is a process of its own with a lower priority than the server's. To load a server with eight
callers that each send when their last request is answered, and to get a ``Record`` per request::

    arguments = LevelArguments(clients=8, seed=0, policy=Policy(512, min_s=10, max_s=300))
    records = records_of(http_command(IN_FLIGHT, port), arguments)
    found = measurement_of(records, Load("in_flight", "http-infer", 8), 0, now())

``LevelArguments(rate=20.0)`` sends 20 requests a second instead, whatever is answered. Where a
process should serve more than one level, ``generator(command)`` keeps it. Within a process:
``closed_loop`` or ``open_loop`` of ``loop.py`` with ``http.connect``.

    requests.py     what is sent: the mixed load, from a seed
    targets.py      how it is put to each kind of server, over /infer, /generate, streams of events
                    or a completions API; and the check that an answer has to pass
    loop.py         closed and open loops of callers
    http.py         HTTP/1.1 and server-sent events at little cost
    in_process.py   the same with an engine and no server
    levels.py       how much to send, and the loop of a process that is told so
    process.py      starts such a process and reads its records
    measure.py      the record of a request, and which of them count
    figures.py      from records to a measurement of a run
"""
