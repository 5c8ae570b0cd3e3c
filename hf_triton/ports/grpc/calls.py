"""The calls of one connection: each checked, passed on to tritonserver, refused or left."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import quote

from tritonclient.grpc import service_pb2

from generator.spec.runtime_rules import CALL, EMPTY_FINAL
from hf_triton.ports.abandoned_requests import LEFT_S
from hf_triton.ports.grpc import frames as h2
from hf_triton.ports.grpc.answer_errors import error_in, error_of
from hf_triton.ports.grpc.call import Call, prefixed
from hf_triton.ports.grpc.message_relay import MessageRelay
from hf_triton.ports.grpc.messages import Output
from hf_triton.ports.grpc.port import GrpcPort
from hf_triton.ports.grpc.triton_end import WINDOW_BYTES, TritonEnd
from hf_triton.ports.infer_timeout import timeout_s_of
from hf_triton.ports.refusal import RefusedError
from hf_triton.ports.repeats import DIED, GONE, Held
from hf_triton.ports.streams import first_text, new_name

_FINAL = b"triton_final_response\x12\x02\x08\x01"  # true, in a message of a stream
_WANTS_EMPTY_FINAL = b"triton_enable_empty_final_response"


def _parameter(name: str, **value: Any) -> bytes:
    """A field more, as protobuf joins messages."""
    request = service_pb2.ModelInferRequest(parameters={name: service_pb2.InferParameter(**value)})
    message: bytes = request.SerializeToString()
    return message


# A model that is told in vain sends no more than a flag.
_SAYS_EMPTY_FINAL = _parameter(EMPTY_FINAL, bool_param=True)
_MESSAGE_S = 120.0  # for one to come as a whole
_MAX_WAITING = 64
_CODES = {400: 3, 401: 16, 403: 7, 408: 1, 413: 8, 429: 8, 501: 12, 503: 14}
_UNKNOWN = 2
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_ANSWER_HEAD = ((b":status", b"200"), (b"content-type", b"application/grpc"))


class Calls:
    """``tell`` takes frames for the client; ``on_end`` is called when a call has ended."""

    def __init__(
        self,
        port: GrpcPort,
        triton: TritonEnd,
        tell: Callable[[bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        self._port, self._triton = port, triton
        self._tell, self._on_end = tell, on_end
        self.by_stream: dict[int, Call] = {}

    def begin(self, call: Call, address: str) -> None:
        """A call whose head has come."""
        self.by_stream[call.stream] = call
        try:
            call.account = self._port.admit(call.head, address)
        except RefusedError as refusal:
            self.refuse(call, refusal)

    def take_data(self, call: Call, data: bytes) -> None:
        """Some of its messages."""
        if call.is_left or call.is_sent:
            return
        if not call.incoming:
            call.began_at_s = self._port.now()
        call.incoming += data
        try:
            for message in call.messages(self._port.max_body_bytes):
                self._take_message(call, message)
            self._port.hold(call)
        except RefusedError as refusal:
            self.refuse(call, refusal)

    def end_sending(self, call: Call) -> None:
        """The client sends no more of it."""
        if call.is_left or call.is_sent:
            return
        if call.incoming or not (call.num_sent or call.waiting):
            self.refuse(call, RefusedError(400, "got a call without a whole message"))
            return
        call.is_sent = True
        if call.waiting is None:
            self._flush(call)

    def _take_message(self, call: Call, message: bytes) -> None:
        """Raises RefusedError."""
        if call.waiting is not None:
            call.waiting.append(message)
            if len(call.waiting) > _MAX_WAITING:
                raise RefusedError(429, f"got more than {_MAX_WAITING} requests at once")
            return
        classified = self._port.check(call, message)
        answer = self._port.own_answer(call, message)
        if answer is not None:
            self._answer(call, answer)
        elif classified:
            call.waiting = [message]
            self._port.run(self._take_later(call, classified))
        else:
            self._send(call, message)

    async def _take_later(self, call: Call, classified: list[Output]) -> None:
        """The same where tritonserver must be asked about the model first."""
        try:
            if self._port.repeats.is_asleep(call.model):
                await self._wake(call.model)
            for output in classified:
                await self._port.triton.check_classified(output)
            if call.is_left:
                return
            (first, *others), call.waiting = call.waiting or [b""], None
            self._send(call, first)
            for message in others:
                self._take_message(call, message)
        except RefusedError as refusal:
            self.refuse(call, refusal)
        else:
            if call.is_sent and call.waiting is None:
                self._flush(call)

    async def _wake(self, model: str) -> None:
        """Waits until a model is loaded. Raises RefusedError."""
        held = Held(self._port.repeats, model, lambda: None)
        try:
            await held.turn()
        finally:
            held.end()

    def _answer(self, call: Call, message: bytes) -> None:
        """Ends a call with an answer of our own."""
        self._tell(h2.header_frames(call.stream, h2.header_block(_ANSWER_HEAD)))
        self._tell(h2.frame(h2.DATA, 0, call.stream, prefixed(message)))
        call.has_answer, trailers = True, h2.header_block([(b"grpc-status", b"0")])
        self._tell(h2.header_frames(call.stream, trailers, h2.END_STREAM))
        if not call.is_sent:
            self._tell(h2.rst_stream(call.stream, h2.NO_ERROR))
        self.leave(call)

    def _send(self, call: Call, message: bytes) -> None:
        if not (call.model or self._triton.transport):  # what is no inference does not wait
            raise RefusedError(503, GONE)
        begins = bool(call.model) and call.held is None  # those before are answered
        call.num_sent += 1
        if begins:
            call.name, call.num_open = "", 0
        call.num_open += 1
        if call.num_open > 1 and call.held and call.held.has_begun:
            call.payload = None  # nobody knows which of several requests a response answers
        if call.asks_ours:
            message += _parameter(CALL, string_param=self._named(call))
        if self._port.is_stream(call) and _WANTS_EMPTY_FINAL in message:
            message += _SAYS_EMPTY_FINAL
        data = prefixed(message)
        if begins:
            self._hold(call, message)
        if call.payload is not None:
            call.payload += data
        if not call.is_waiting:
            self._pass_on(call, data)

    def _named(self, call: Call) -> str:
        """What a model is told of a call."""
        if call.name:
            return call.name  # of another request of a stream
        call.name = new_name()
        return first_text(call.name, streams=self._port.is_stream(call))

    def _pass_on(self, call: Call, data: bytes) -> None:
        if not call.triton_stream:
            self._open(call)
        call.pending += data
        if self._port.is_stream(call) or call.is_sent:  # others go on with the end of sending
            self._flush(call)

    def _hold(self, call: Call, message: bytes) -> None:
        call.payload = bytearray()
        stream = call.name if self._port.is_stream(call) else ""

        def describe() -> tuple[float, str]:
            request = service_pb2.ModelInferRequest.FromString(message)
            return timeout_s_of(request), str(request.id)

        lose, repeats = partial(self._lose, call), self._port.repeats
        call.held = Held(repeats, call.model, lose, describe, stream)
        if not call.held.may_go():
            self._wait(call)

    def _wait(self, call: Call) -> None:
        call.is_waiting = True
        call.task = self._port.run(self._go_later(call))

    async def _go_later(self, call: Call) -> None:
        """Sends a call once its model is there."""
        try:
            if call.held:
                await call.held.turn()
        except RefusedError as refusal:
            self.refuse(call, refusal)
        else:
            call.is_waiting = False
            payload = bytes(call.payload or b"")
            if call.name and call.held:
                payload = call.held.as_sent_again(payload, call.name)
            self._pass_on(call, payload)

    def _lose(self, call: Call) -> None:
        """The process of its model has died."""
        if call.is_left or call.is_waiting:
            return
        if call.held and call.payload is not None:
            call.held.lost()
            self.ask_again(call)
        else:
            self.refuse(call, RefusedError(503, DIED))

    def ask_again(self, call: Call) -> None:
        """What was sent of it is forgotten."""
        self._forget_sent(call)
        self._wait(call)

    def _forget_sent(self, call: Call) -> None:
        self._triton.calls.pop(call.triton_stream, None)
        call.pending.clear()
        call.triton_stream, call.is_passed_on, call.is_over = 0, False, False
        call.has_new_head = False
        call.credit = max(0, call.answer_window - self._triton.client.call_window)
        if call.relay:  # it has a window of its own
            call.credit = max(0, WINDOW_BYTES - self._triton.client.call_window)
            if num_bytes := call.relay.begin_again():  # the client has never had them
                self._triton.client.answer_window += num_bytes
                self._triton.write(h2.window_update(0, num_bytes))

    def lose_triton(self, triton: TritonEnd) -> None:
        """Tritonserver has gone; ``triton`` is the connection to the next one."""
        self._triton = triton
        for call in list(self.by_stream.values()):
            is_answered = bool(call.model) and not (call.held or call.is_sent)
            if call.held and call.payload is not None and not call.is_left:
                if not call.is_waiting:
                    call.held.lost()
                    self.ask_again(call)
            elif not call.is_left and (is_answered or not call.num_sent):
                self._forget_sent(call)  # its next request goes to the next one
            else:
                call.triton_stream = 0
                self.refuse(call, RefusedError(503, GONE))
                self.forget(call)

    def holds_back(self, call: Call, frame: h2.Frame) -> bool:
        """Whether a frame of an answer is not for the client: it says that the model is away, and
        the call is sent again; or it is the head of a second try.
        """
        kind, flags = frame[:2]
        if kind == h2.HEADERS and not flags & h2.END_STREAM:
            had_head, call.has_head, call.has_new_head = call.has_head, True, True
            return had_head
        if call.relay and kind == h2.DATA:
            self._take_messages(call, call.relay, h2.payload_of(flags, frame[3]))
            return True
        error = error_in(frame)
        if error and call.payload is not None and call.held and call.held.is_away(error):
            self.ask_again(call)
            return True
        if call.relay and not call.relay.is_empty:
            call.relay.trailers = frame
            return True
        self._begin_answer(call)
        if call.has_head and not call.has_new_head and kind == h2.HEADERS:
            self.refuse(call, RefusedError(503, error))
            return True
        return bool(call.relay) and kind == h2.DATA and self.holds_back(call, frame)

    def _begin_answer(self, call: Call) -> None:
        """Only a stream that can go on in another process is sent again from here on. Whole
        answers are safe, other streams can be lost still.
        """
        if call.held and self._port.is_stream(call):
            call.held.has_begun = True
        elif call.held:
            call.held.end()
            call.held = None
        if call.held and call.num_open == 1 and call.held.may_go_on:
            call.relay = call.relay or MessageRelay()
        else:
            call.payload = None
        self._port.release(call)

    def _take_messages(self, call: Call, relay: MessageRelay, data: bytes) -> None:
        """Passes on whole messages of a stream that may go on in another process."""
        self._triton.client.answer_window -= len(data)
        for message in relay.take(data):
            error, held = error_of(message), call.held
            if error and held and call.payload is not None and held.is_away(error):
                self.ask_again(call)
                break
            relay.add(message)
            if held and not held.has_begun:
                self._begin_answer(call)
            if held:
                held.passed_on()
            if held and _FINAL in message and call.num_open == 1:
                self._drop_held(call)  # its stream may stay open for others
                self._port.release(call)
        self.flush_answer(call)

    def flush_answer(self, call: Call) -> None:
        """The client has room for more."""
        relay = call.relay
        if relay is None or call.is_left:
            return
        frames, num_bytes = relay.frames(call.stream, call.answer_window)
        if frames:
            call.answer_window -= num_bytes
            self._tell(frames)
        if call.triton_stream and (room := relay.room_for_triton()):
            self._triton.write(h2.window_update(call.triton_stream, room))
        if relay.trailers and relay.is_empty:
            trailers, relay.trailers = relay.trailers, None
            self._triton.pass_on(call, trailers)

    def _open(self, call: Call) -> None:
        call.triton_stream = self._triton.open(call)
        block = call.head.block + h2.header_block(self._port.own_headers(call))
        self._triton.write(h2.header_frames(call.triton_stream, block))
        if call.credit:
            self._triton.write(h2.window_update(call.triton_stream, call.credit))

    def _flush(self, call: Call) -> None:
        if call.triton_stream:
            self._triton.flush(call)
            if call.is_passed_on and not self._port.may_keep(len(call.payload or b"")):
                call.payload = None
            self._port.release(call)

    def flush_all(self) -> None:
        """Triton takes more."""
        for call in list(self.by_stream.values()):
            if call.pending:
                self._flush(call)

    def refuse(self, call: Call, refusal: RefusedError) -> None:
        """Ends a call with an error, its first answer or its last."""
        if call.is_left:
            return
        headers = [] if call.has_answer else list(_ANSWER_HEAD)
        code = _CODES.get(refusal.status, _UNKNOWN)
        text = quote(refusal.text, safe=_PRINTABLE)
        headers += [(b"grpc-status", str(code).encode()), (b"grpc-message", text.encode())]
        self._tell(h2.header_frames(call.stream, h2.header_block(headers), h2.END_STREAM))
        if not call.is_sent:
            self._tell(h2.rst_stream(call.stream, h2.NO_ERROR))
        self.leave(call)

    def leave(self, call: Call) -> None:
        """The client wants no more of it. Its sending ends in order, its model is told, and what
        still comes of it is read: Triton dies of calls that are cancelled as they end before 25.06,
        and of streams that are cancelled up to 26.08.
        """
        if call.is_left:
            return
        call.is_left, call.began_at_s = True, self._port.now()
        call.incoming.clear()
        self._drop_held(call)
        relay, call.relay = call.relay, None
        if not call.triton_stream or (relay and relay.trailers):
            self.forget(call)
            return
        if relay:
            call.answer_window = self._triton.client.call_window - relay.num_taken
        if call.name:
            self._port.left.tell(call.name)
        call.is_sent = True
        self._flush(call)
        self._triton.take_all(call)

    def forget(self, call: Call) -> None:
        """It has ended."""
        if self.by_stream.pop(call.stream, None) is None:
            return
        call.is_left = True
        call.incoming.clear()
        call.pending.clear()
        self._drop_held(call)
        self._port.release(call)
        self._triton.calls.pop(call.triton_stream, None)
        self._port.left.forget(call.name)
        self._give_place_back(call)
        self._on_end()

    def _drop_held(self, call: Call) -> None:
        held, call.held, call.payload = call.held, None, None
        if held:
            held.end()
        if call.is_waiting and call.task:
            call.task.cancel()

    def _give_place_back(self, call: Call) -> None:
        account, call.account = call.account, None
        if account:
            account.leave()

    def time_out(self, now: float) -> None:
        """Refuses those that take too long to come. Of those that were left, and that Triton may
        never end because their model's process has died, the caller gets its places back.
        """
        for call in list(self.by_stream.values()):
            if call.is_left and now - call.began_at_s > LEFT_S:
                self._give_place_back(call)
            is_coming = call.incoming or not (call.num_sent or call.waiting)
            if is_coming and now - call.began_at_s > _MESSAGE_S:
                self.refuse(call, RefusedError(408, "the request did not come in time"))
