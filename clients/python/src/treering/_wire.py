"""gRPC, for threads and for asyncio: the only two things that are written twice.

Both send a request and give back what comes, or raise a `TreeringError`. What is sent
when, and again, is decided above, in `_async/transport.py`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, cast

import grpc
import grpc.aio

from treering import errors
from treering._local import Endpoint
from treering._methods import Method, Req, Res

T = TypeVar("T")
Metadata = Sequence[tuple[str, str]]

OPTIONS: list[tuple[str, int]] = [
    # The server bounds what it takes and what it sends; gRPC's own 4 MiB would refuse
    # what the store holds.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Errors with their details travel in headers.
    ("grpc.max_metadata_size", 256 << 10),
    # A server that was started again is found at once, not after minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Its name misleads: it is what one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A line that is cut without a word is noticed by those who wait for events.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Retries are made above, where keys and hints are known.
    ("grpc.enable_retries", 0),
]

READING = [("SingleThreadedUnaryStream", 1)]
"""For answers that come until they end: whoever takes one waits for it, and no other thread."""


def options(address: str) -> list[tuple[str, int]]:
    """Of a channel to there."""
    here = address.startswith(("127.", "localhost:", "[::1]:"))
    # A proxy for the world outside does not know this machine's servers.
    return [*OPTIONS, ("grpc.enable_http_proxy", 0)] if here else OPTIONS


def translated(error: grpc.RpcError) -> errors.TreeringError:
    """The error of the right class."""
    return errors.from_rpc(cast(grpc.Call, error))


class SyncStream(Generic[T]):
    """Answers as they come, for threads."""

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
        # The same connection, with other threads.
        self._reading: grpc.Channel | None = None
        # Of servers that are gone: to close them at once would cancel what others do.
        self._old: list[grpc.Channel] = []
        self._mutex = threading.Lock()

    def connect(self) -> None:
        """Starts the server, if it is ours to start."""
        self._open(self._endpoint.address())

    def renew(self) -> None:
        """Looks for the server again."""
        self._open(self._endpoint.renew())

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
            return cast(Res, call(request, timeout=timeout, metadata=self._metadata))
        except grpc.RpcError as error:
            raise translated(error) from None
        except ValueError as error:  # the channel was closed meanwhile
            raise errors.Unreachable(str(error)) from None

    def stream(
        self, method: Method[Req, Res], request: object, *, reads: bool = False
    ) -> SyncStream[Res]:
        """One request (or, for a method that takes many, an iterable), many answers.

        A stream that reads comes to an end, and is not ended by another thread.
        """
        try:
            call = self._callable(method, reads=reads)
            return SyncStream(call(request, metadata=self._metadata))
        except ValueError as error:
            raise errors.Unreachable(str(error)) from None

    def in_thread(self, work: Callable[[], T]) -> T:
        """Does what takes long."""
        return work()

    def sleep(self, seconds: float) -> None:
        """Waits."""
        time.sleep(seconds)

    def close(self) -> None:
        """Ends the connection."""
        with self._mutex:
            channels = [*self._old, *filter(None, [self._channel, self._reading])]
            self._old, self._channel, self._reading = [], None, None
        for channel in channels:
            channel.close()
        self._endpoint.close()


class AsyncStream(Generic[T]):
    """Answers as they come, for asyncio."""

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
                raise errors.Cancelled("the call was ended") from None
            raise

    def cancel(self) -> None:
        """Ends the call."""
        self._is_cancelled = True
        self._call.cancel()


def _task_is_cancelled() -> bool:
    """gRPC tells the end of a call by another task as if this task had been cancelled."""
    task = asyncio.current_task()
    # Python 3.10 does not know.
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
        # Of servers that are gone: to close them at once would cancel what others do.
        self._old: list[grpc.aio.Channel] = []
        self.is_closed = False

    async def connect(self) -> None:
        """Starts the server, if it is ours to start."""
        await self._open(await asyncio.to_thread(self._endpoint.address))

    async def renew(self) -> None:
        """Looks for the server again."""
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
        """A channel of gRPC's lives in the loop in which it was made."""
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
        try:
            return cast(Res, await call(request, timeout=timeout, metadata=self._metadata))
        except grpc.RpcError as error:
            raise translated(error) from None
        except grpc.aio.UsageError as error:  # the channel was closed meanwhile
            raise errors.Unreachable(str(error)) from None
        except asyncio.CancelledError:
            if self.is_closed and not _task_is_cancelled():
                raise errors.ClientClosed() from None
            raise

    async def stream(
        self, method: Method[Req, Res], request: object, *, reads: bool = False
    ) -> AsyncStream[Res]:
        """One request (or, for a method that takes many, an iterable), many answers.

        Whether it reads or follows is all one here.
        """
        call = await self._callable(method)
        return AsyncStream(call(request, metadata=self._metadata), self)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Does what takes long."""
        return await asyncio.to_thread(work)

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Ends the connection."""
        self.is_closed = True
        channels = [*self._old, *filter(None, [self._channel])]
        self._old, self._channel = [], None
        for channel in channels:
            await channel.close()
        await asyncio.to_thread(self._endpoint.close)
