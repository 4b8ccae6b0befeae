"""gRPC, for threads and for asyncio: the only code that is written twice.

Both send a request and return the answers, or raise a `TreeringError`. Retries are decided in
`_async/transport.py`.

A write that was sent is not cancelled: the server could still perform it, after the client's
next write. A caller that abandons a write waits briefly for its outcome, and later writes wait
until the outcome is known.
"""

from __future__ import annotations

import _thread
import asyncio
import math
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, cast

import grpc
import grpc.aio

from treering import errors
from treering._local import Endpoint
from treering._methods import Again, Method, Req, Res

T = TypeVar("T")
Metadata = Sequence[tuple[str, str]]

OPTIONS: list[tuple[str, int]] = [
    # The server limits the sizes of messages; gRPC's default of 4 MiB is too small for
    # stored events.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # The details of errors are sent in metadata.
    ("grpc.max_metadata_size", 256 << 10),
    # Reconnects to a restarted server at once, not after minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name, this is the timeout of one attempt to connect.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Lets subscriptions notice a connection that was lost silently.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    # `_async/transport.py` retries: it knows the keys and the retry hints.
    ("grpc.enable_retries", 0),
]

CANCELLED_SECONDS = 1.0
"""Seconds that a caller waits for the outcome of a write that it abandons."""
SETTLING_SECONDS = 30.0
"""Seconds that a write continues after its deadline; then it is cancelled."""

READING = [("SingleThreadedUnaryStream", 1)]
"""For streams that end by themselves: the reading thread runs the call, without another thread."""


def options(address: str) -> list[tuple[str, int]]:
    """Options of a channel to this address."""
    here = address.startswith(("127.", "localhost:", "[::1]:"))
    # An HTTP proxy does not know the servers of this machine.
    return [*OPTIONS, ("grpc.enable_http_proxy", 0)] if here else OPTIONS


def _writes(method: Method[Any, Any]) -> bool:
    return method.again is Again.WITH_KEY


def _late() -> errors.DeadlineExceeded:
    message = "no answer before the timeout"
    return errors.DeadlineExceeded(message, code=grpc.StatusCode.DEADLINE_EXCEEDED)


def _not_sent() -> errors.DeadlineExceeded:
    message = "not sent: the outcome of an earlier, abandoned write is still unknown"
    return errors.DeadlineExceeded(message, code=grpc.StatusCode.DEADLINE_EXCEEDED)


def translated(error: grpc.RpcError) -> errors.TreeringError:
    """Converts a gRPC error to the matching class."""
    return errors.from_rpc(cast(grpc.Call, error))


class SyncStream(Generic[T]):
    """A stream of answers, for threads."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return cast(T, next(self._call))
        except grpc.RpcError as error:
            raise translated(error) from None

    def cancel(self) -> None:
        """Ends the call."""
        self._call.cancel()

    def leave(self) -> None:
        """Stops reading, and ends the call."""
        self.cancel()


class SyncLeft:
    """Writes that were abandoned after they were sent, for threads.

    Each is a lock that its thread holds until it ends. Unlike a `threading.Event`, a lock is safe
    when Ctrl-C interrupts it.
    """

    def __init__(self) -> None:
        self._ends: dict[threading.Lock, float] = {}

    def add(self, running: threading.Lock, last: float, wait: float = CANCELLED_SECONDS) -> None:
        """Adds a write that ends by `last`, and waits up to `wait` seconds for its end."""
        self._ends[running] = last
        self.wait(wait)

    def wait(self, seconds: float) -> bool:
        """Waits up to `seconds` for all to end, and tells whether they did."""
        end = time.monotonic() + seconds
        for running, last in list(self._ends.items()):
            left = min(end, last) - time.monotonic()
            if running.acquire(timeout=max(0.0, min(left, threading.TIMEOUT_MAX))):
                running.release()
            elif time.monotonic() < last:
                return False
            self._ends.pop(running, None)
        return True


def _held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


class SyncWrites(SyncStream[T]):
    """A stream of answers to writes. A thread reads all answers, even after the caller stops."""

    def __init__(self, call: Any, left: SyncLeft) -> None:
        super().__init__(call)
        self._left = left
        self._came: queue.SimpleQueue[T | Exception] = queue.SimpleQueue()
        self._running = _held()
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        try:
            while True:
                self._came.put(super().__next__())
        except (StopIteration, errors.TreeringError) as end:
            self._came.put(end)
        finally:
            self._running.release()

    def __next__(self) -> T:
        came = self._came.get()
        if isinstance(came, Exception):
            raise came
        return came

    def leave(self) -> None:
        """Stops reading; writes that were sent are completed."""
        try:
            self._left.add(self._running, time.monotonic() + SETTLING_SECONDS)
        finally:
            if self._running.locked():
                timer = threading.Timer(SETTLING_SECONDS, self.cancel)
                timer.daemon = True
                timer.start()


class SyncWire:
    """A channel, for threads."""

    def __init__(
        self, endpoint: Endpoint, credentials: grpc.ChannelCredentials | None, metadata: Metadata
    ) -> None:
        self._endpoint = endpoint
        self._credentials = credentials
        self._metadata = list(metadata)
        self._address = ""
        self._channel: grpc.Channel | None = None
        # The same connection, for streams that end by themselves: see `READING`.
        self._reading: grpc.Channel | None = None
        # Channels to earlier addresses: to close them now would cancel other threads' calls.
        self._old: list[grpc.Channel] = []
        # Channels that a thread of gRPC watches until they are connected.
        self._watched: set[grpc.Channel] = set()
        self._mutex = threading.Lock()
        self._left = SyncLeft()

    def connect(self) -> None:
        """Opens a channel; first starts the server of a folder if needed."""
        self._open(self._endpoint.address())

    def renew(self) -> None:
        """Finds the server again."""
        self._open(self._endpoint.renew())
        for channel in filter(None, (self._channel, self._reading)):
            self._watch(channel)

    def _watch(self, channel: grpc.Channel) -> None:
        """Lets gRPC connect between calls.

        The oldest supported grpcio reads the server's settings only while a call or a watcher
        waits. Calls to a stopped server end at once, so gRPC did not notice that it had connected.
        """

        def seen(state: grpc.ChannelConnectivity) -> None:
            if state is grpc.ChannelConnectivity.READY:
                channel.unsubscribe(seen)
                self._watched.discard(channel)

        with self._mutex:
            if channel in self._watched:
                return
            self._watched.add(channel)
        channel.subscribe(seen)

    def _open(self, address: str) -> grpc.Channel:
        with self._mutex:
            if self._channel is not None and address == self._address:
                return self._channel
            self._old += filter(None, (self._channel, self._reading))
            self._channel = self._new_channel(address, [])
            self._reading = self._new_channel(address, READING)
            self._address = address
            return self._channel

    def _new_channel(self, address: str, more: list[tuple[str, int]]) -> grpc.Channel:
        given = [*options(address), *more]
        if self._credentials is None:
            return grpc.insecure_channel(address, options=given)
        return grpc.secure_channel(address, self._credentials, options=given)

    def _callable(self, method: Method[Req, Res], *, reads: bool = False) -> Any:
        channel = self._channel or self._open(self._endpoint.address())
        if reads:
            channel = self._reading or channel
        make = {
            (False, False): channel.unary_unary,
            (False, True): channel.unary_stream,
            (True, False): channel.stream_unary,
            (True, True): channel.stream_stream,
        }[method.streams_in, method.streams_out]
        return make(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )

    def unary(self, method: Method[Req, Res], request: Req, timeout: float) -> Res:
        """One request, one answer."""
        return self._answer(method, request, timeout)

    def send_many(
        self, method: Method[Req, Res], requests: Callable[[], Iterable[Req]], timeout: float
    ) -> Res:
        """Many requests, one answer."""
        return self._answer(method, iter(requests()), timeout)

    def _answer(self, method: Method[Req, Res], request: object, timeout: float) -> Res:
        try:
            call = self._callable(method)
            if _writes(method):
                return cast(Res, self._write(call, request, time.monotonic() + timeout))
            return cast(Res, call(request, timeout=timeout, metadata=self._metadata))
        except grpc.RpcError as error:
            raise translated(error) from None
        except ValueError as error:  # the channel was closed
            raise errors.Unreachable(str(error)) from None

    def _write(self, call: Any, request: object, deadline: float) -> object:
        if not self._left.wait(deadline - time.monotonic()):
            raise _not_sent()
        left = deadline - time.monotonic()
        # The call gets its own thread: gRPC ends a call when Ctrl-C interrupts its thread.
        came: queue.SimpleQueue[tuple[object, BaseException | None]] = queue.SimpleQueue()
        running = _held()

        def send() -> None:
            try:
                seconds = left + SETTLING_SECONDS
                came.put((call(request, timeout=seconds, metadata=self._metadata), None))
            except BaseException as error:
                came.put((None, error))
            finally:
                running.release()

        last = deadline + SETTLING_SECONDS
        try:
            _thread.start_new_thread(send, ())
            answer, error = came.get(timeout=max(0.0, min(left, threading.TIMEOUT_MAX)))
        except queue.Empty:
            self._left.add(running, last, wait=0)
            raise _late() from None
        except BaseException:
            # Ctrl-C, or an exception of a signal handler.
            self._left.add(running, last)
            raise
        if error is not None:
            raise error
        return answer

    def stream(
        self,
        method: Method[Req, Res],
        request: object,
        *,
        reads: bool = False,
        within: float = math.inf,
    ) -> SyncStream[Res]:
        """One request (or, for a method that takes many, an iterable), many answers.

        `reads` is for a stream that ends by itself, and that no other thread cancels. `within` is
        the maximum number of seconds until writes are sent.
        """
        try:
            call = self._callable(method, reads=reads)
            if not _writes(method):
                return SyncStream(call(request, metadata=self._metadata))
            if not self._left.wait(within):
                raise _not_sent()
            return SyncWrites(call(request, metadata=self._metadata), self._left)
        except ValueError as error:
            raise errors.Unreachable(str(error)) from None

    def in_thread(self, work: Callable[[], T]) -> T:
        """Runs `work`, which may block."""
        return work()

    def sleep(self, seconds: float) -> None:
        """Waits."""
        time.sleep(seconds)

    def close(self) -> None:
        """Closes the channels, and releases the server."""
        self._left.wait(CANCELLED_SECONDS)
        with self._mutex:
            channels = [*self._old, *filter(None, [self._channel, self._reading])]
            self._old, self._channel, self._reading = [], None, None
        for channel in channels:
            channel.close()
        self._endpoint.close()


class AsyncStream(Generic[T]):
    """A stream of answers, for asyncio."""

    def __init__(self, call: Any, wire: AsyncWire) -> None:
        self._call = call
        self._wire = wire
        self._answers = call.__aiter__()
        self._is_cancelled = False

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        try:
            return cast(T, await self._answers.__anext__())
        except grpc.RpcError as error:
            raise translated(error) from None
        except asyncio.CancelledError:
            if (self._is_cancelled or self._wire.is_closed) and not _task_is_cancelled():
                raise errors.Cancelled("the call was cancelled") from None
            raise

    def cancel(self) -> None:
        """Ends the call."""
        self._is_cancelled = True
        self._call.cancel()

    async def leave(self) -> None:
        """Stops reading, and ends the call."""
        self.cancel()


class AsyncWrites(AsyncStream[T]):
    """A stream of answers to writes. A task reads all answers, even after the caller stops."""

    def __init__(self, call: Any, wire: AsyncWire) -> None:
        super().__init__(call, wire)
        self._came: asyncio.Queue[T | Exception] = asyncio.Queue()
        self._taking = asyncio.ensure_future(self._take())

    async def _take(self) -> None:
        try:
            while True:
                self._came.put_nowait(await super().__anext__())
        except (StopAsyncIteration, errors.TreeringError) as end:
            self._came.put_nowait(end)

    async def __anext__(self) -> T:
        came = await self._came.get()
        if isinstance(came, Exception):
            raise came
        return came

    async def leave(self) -> None:
        """Stops reading; writes that were sent are completed."""
        if not self._taking.done():
            timer = asyncio.get_running_loop().call_later(SETTLING_SECONDS, self.cancel)
            self._taking.add_done_callback(lambda _: timer.cancel())
            await self._wire.leave(self._taking)


def _task_is_cancelled() -> bool:
    """Whether this task is cancelled: gRPC raises the same error if another task ends the call."""
    task = asyncio.current_task()
    # Python 3.10 has no `cancelling`.
    cancelling: Callable[[], int] = getattr(task, "cancelling", lambda: 0)
    return cancelling() > 0


class AsyncWire:
    """A channel, for asyncio."""

    def __init__(
        self, endpoint: Endpoint, credentials: grpc.ChannelCredentials | None, metadata: Metadata
    ) -> None:
        self._endpoint = endpoint
        self._credentials = credentials
        self._metadata = list(metadata)
        self._address = ""
        self._channel: grpc.aio.Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # Channels to earlier addresses: to close them now would cancel other tasks' calls.
        self._old: list[grpc.aio.Channel] = []
        # Writes that were abandoned after they were sent.
        self._left: set[asyncio.Future[Any]] = set()
        self.is_closed = False

    async def connect(self) -> None:
        """Opens a channel; first starts the server of a folder if needed."""
        await self._open(await asyncio.to_thread(self._endpoint.address))

    async def renew(self) -> None:
        """Finds the server again."""
        await self._open(await asyncio.to_thread(self._endpoint.renew))

    async def _open(self, address: str) -> grpc.aio.Channel:
        self._stays_in_its_loop()
        if self._channel is not None and address == self._address:
            return self._channel
        if self._channel is not None:
            self._old.append(self._channel)
        if self._credentials is None:
            channel = grpc.aio.insecure_channel(address, options=options(address))
        else:
            channel = grpc.aio.secure_channel(address, self._credentials, options=options(address))
        self._channel, self._address = channel, address
        return channel

    def _stays_in_its_loop(self) -> None:
        """Raises in another event loop: a gRPC channel belongs to the loop that created it."""
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise errors.OtherEventLoop()

    async def _callable(self, method: Method[Req, Res]) -> Any:
        self._stays_in_its_loop()
        if self._channel is None:
            await self.connect()
        channel = cast(grpc.aio.Channel, self._channel)
        make: Any = {
            (False, False): channel.unary_unary,
            (False, True): channel.unary_stream,
            (True, False): channel.stream_unary,
            (True, True): channel.stream_stream,
        }[method.streams_in, method.streams_out]
        return make(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )

    async def unary(self, method: Method[Req, Res], request: Req, timeout: float) -> Res:
        """One request, one answer."""
        return await self._answer(method, request, timeout)

    async def send_many(
        self, method: Method[Req, Res], requests: Callable[[], Iterable[Req]], timeout: float
    ) -> Res:
        """Many requests, one answer."""
        return await self._answer(method, iter(requests()), timeout)

    async def _answer(self, method: Method[Req, Res], request: object, timeout: float) -> Res:
        call = await self._callable(method)
        if _writes(method):
            return cast(Res, await self._write(call, request, time.monotonic() + timeout))
        return cast(Res, await self._outcome(call, request, timeout))

    async def _outcome(self, call: Any, request: object, timeout: float) -> object:
        try:
            return await call(request, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise translated(error) from None
        except grpc.aio.UsageError as error:  # the channel was closed
            raise errors.Unreachable(str(error)) from None
        except asyncio.CancelledError:
            if self.is_closed and not _task_is_cancelled():
                raise errors.ClientClosed() from None
            raise

    async def _write(self, call: Any, request: object, deadline: float) -> object:
        await self._wait_for_left(deadline - time.monotonic())
        seconds = deadline - time.monotonic()
        sent = asyncio.ensure_future(self._outcome(call, request, seconds + SETTLING_SECONDS))
        try:
            await asyncio.wait({sent}, timeout=max(0.0, seconds))
        except asyncio.CancelledError:
            await self.leave(sent)
            raise
        if not sent.done():
            await self.leave(sent, wait=0)
            raise _late()
        return sent.result()

    async def leave(self, sent: asyncio.Future[Any], wait: float = CANCELLED_SECONDS) -> None:
        """Adds an abandoned write, and waits up to `wait` seconds for its outcome."""
        self._left.add(sent)
        sent.add_done_callback(self._forget)
        await asyncio.wait({sent}, timeout=wait)

    def _forget(self, sent: asyncio.Future[Any]) -> None:
        self._left.discard(sent)
        if not sent.cancelled():
            sent.exception()

    async def _wait_for_left(self, seconds: float) -> None:
        if self._left:
            _, late = await asyncio.wait(set(self._left), timeout=max(0.0, seconds))
            if late:
                raise _not_sent()

    async def stream(
        self,
        method: Method[Req, Res],
        request: object,
        *,
        reads: bool = False,
        within: float = math.inf,
    ) -> AsyncStream[Res]:
        """One request (or, for a method that takes many, an iterable), many answers.

        `reads` has no effect here. `within` is the maximum number of seconds until writes are
        sent.
        """
        call = await self._callable(method)
        if _writes(method):
            await self._wait_for_left(within)
            return AsyncWrites(call(request, metadata=self._metadata), self)
        return AsyncStream(call(request, metadata=self._metadata), self)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Runs `work`, which may block, in a thread."""
        return await asyncio.to_thread(work)

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Closes the channels, and releases the server."""
        if self._left:
            await asyncio.wait(set(self._left), timeout=CANCELLED_SECONDS)
        self.is_closed = True
        channels = [*self._old, *filter(None, [self._channel])]
        self._old, self._channel = [], None
        for channel in channels:
            await channel.close()
        await asyncio.to_thread(self._endpoint.close)
