"""Sends calls, and sends them again where that is safe, until their timeout."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from treering import errors
from treering._entry import sendable
from treering._local import Endpoint, Local
from treering._methods import HEALTH, HEALTH_SERVING, Method, Req, Res
from treering._retry import STRANGER_PATIENCE, Attempts
from treering._wire import AsyncStream, AsyncWire

T = TypeVar("T", bound=Message)


class AsyncTransport:
    """The connection to a server, in one namespace."""

    def __init__(
        self,
        endpoint: Endpoint,
        namespace: str,
        timeout: float,
        credentials: grpc.ChannelCredentials | None,
        metadata: Iterable[tuple[str, str]],
    ) -> None:
        tags = [("treering-namespace", sendable(namespace, "`namespace`")), *metadata]
        self.wire = AsyncWire(endpoint, credentials, tags)
        self.namespace = namespace
        self.timeout = timeout
        self.last_position = 0
        # The server of a folder is started when needed, so its address is right.
        self._met = isinstance(endpoint, Local)
        self._closed = False

    async def connect(self) -> None:
        """Opens a channel; first starts the server of a folder if needed."""
        await self.wire.connect()

    async def unary(
        self,
        method: Method[Req, Res],
        request: Req,
        *,
        key: str = "",
        timeout: float | None = None,
    ) -> Res:
        """One request, one answer."""
        attempts = self._attempts(method, key, timeout)
        while True:
            try:
                answer = await self.wire.unary(method, request, attempts.left())
                self._met = True
                return answer
            except errors.TreeringError as error:
                await self._before_next(attempts, error)

    async def send_many(
        self,
        method: Method[Req, Res],
        requests: Callable[[], Iterable[Req]],
        *,
        key: str,
        timeout: float | None = None,
    ) -> Res:
        """Many requests, one answer; `requests` creates them again for each attempt."""
        attempts = self._attempts(method, key, timeout)
        while True:
            try:
                answer = await self.wire.send_many(method, requests, attempts.left())
                self._met = True
                return answer
            except errors.TreeringError as error:
                await self._before_next(attempts, error)

    async def read(
        self,
        method: Method[Req, Res],
        request: Callable[[], object],
        *,
        key: str = "",
        timeout: float | None = None,
        begun: AsyncStream[Res] | None = None,
    ) -> AsyncGenerator[Res, None]:
        """One request, many answers.

        After a break, `request` is called again, for the remaining answers. The timeout restarts
        with each answer. `begun` is the stream that `begin` returned for the same request.
        """
        attempts = self._attempts(method, key, timeout)
        stream = begun
        try:
            while True:
                try:
                    if stream is None:
                        stream = await self.wire.stream(
                            method, request(), reads=True, within=attempts.left()
                        )
                    async for answer in stream:
                        self._met = True
                        attempts = self._attempts(method, key, timeout)
                        yield answer
                    self._met = True
                    return
                except errors.TreeringError as error:
                    stream = None
                    await self._before_next(attempts, error)
        finally:
            if stream is not None:
                await stream.leave()

    async def begin(self, method: Method[Req, Res], request: object) -> AsyncStream[Res] | None:
        """Sends a request whose answers are read later, so that several can run at once.

        Returns None if it could not be sent: `read` sends it again, or raises the error.
        """
        if self._closed:
            return None
        try:
            return await self.wire.stream(method, request, reads=True)
        except errors.TreeringError:
            return None

    def follow(self, method: Method[Req, Res], request: Callable[[], Req]) -> Following[Res]:
        """One request, an endless stream of answers, which continues after every break."""
        return Following(self, method, request)

    def _attempts(self, method: Method[Req, Res], key: str, timeout: float | None) -> Attempts:
        if self._closed:
            raise errors.ClientClosed()
        seconds = self.timeout if timeout is None else timeout
        return Attempts(
            again=method.again,
            has_key=bool(key),
            deadline=time.monotonic() + seconds,
            patience=None if self._met else STRANGER_PATIENCE,
        )

    async def _before_next(self, attempts: Attempts, error: errors.TreeringError) -> None:
        """Waits, or raises the error when there is no next attempt."""
        # An error with a reason is an answer of the server.
        self._met = self._met or bool(error.rule)
        if self._met:
            attempts.patience = None
        pause = None if self._closed else attempts.pause_after(error)
        if pause is None:
            raise error
        await self.wire.sleep(pause)
        if isinstance(error, (errors.Unreachable, errors.Closing)):
            await self.wire.renew()

    def saw(self, position: int) -> None:
        """Notes the log offset of an append: searches wait until the index contains it."""
        self.last_position = max(self.last_position, position)

    async def health(self, service: str, timeout: float | None = None) -> bool:
        """Asks the health service, once."""
        request = HEALTH.request(value=service)
        seconds = self.timeout if timeout is None else timeout
        answer = await self.wire.unary(HEALTH, request, seconds)
        return answer.value == HEALTH_SERVING

    async def close(self) -> None:
        """Closes the channels; ends the server of a folder if no other client here uses it."""
        if not self._closed:
            self._closed = True
            await self.wire.close()


class Following(Generic[T]):
    """An endless stream of answers."""

    def __init__(
        self,
        transport: AsyncTransport,
        method: Method[Any, T],
        request: Callable[[], object],
    ) -> None:
        self._transport = transport
        self._method = method
        self._request = request
        self._attempts = transport._attempts(method, "", math.inf)
        self._stream: AsyncStream[T] | None = None
        self._closed = False

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        while not self._closed:
            try:
                if self._stream is None:
                    self._stream = await self._transport.wire.stream(self._method, self._request())
                answer = await self._stream.__anext__()
                self._transport._met = True
                self._attempts = self._transport._attempts(self._method, "", math.inf)
                return answer
            except StopAsyncIteration:
                await self._after(errors.Closing("the server ended the stream"))
            except errors.TreeringError as error:
                await self._after(error)
        raise StopAsyncIteration

    async def _after(self, error: errors.TreeringError) -> None:
        """Continues after the server stopped, or ended the connection to have it opened again."""
        self._stream = None
        if self._transport._closed:
            self._closed = True
        if self._closed:
            return
        if _is_a_break(error):
            error = errors.Unreachable(error.message)
        await self._transport._before_next(self._attempts, error)

    async def aclose(self) -> None:
        """Ends the stream; a pending iteration stops."""
        self._closed = True
        if self._stream is not None:
            self._stream.cancel()


def _is_a_break(error: errors.TreeringError) -> bool:
    codes = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED)
    return not error.rule and error.code in codes
