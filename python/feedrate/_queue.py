"""A bounded queue between threads and processes."""

from __future__ import annotations

import contextlib
import errno
import operator
import os
import pickle
import select
import socket
import struct
import time
from collections.abc import Iterator
from multiprocessing import reduction
from queue import Empty, Full
from typing import Any

import numpy as np

#: Items of more bytes travel in memory of their own, whose descriptor is passed on. Fewer bytes where the socket's buffer has not so
#: much for each of ``maxsize`` items.
INLINE = 32 << 10

_SO_SNDBUFFORCE = 32

#: Bytes of its buffer that a socket is asked for at most.
_ROOM = 8 << 20
#: What Linux counts for a message beyond its bytes, with some to spare: a head, and a block of two to the n in which its tail lies too.
_HEAD, _TAIL = 256, 384
_SMALLEST = _HEAD + 512
_LARGEST_BLOCK = 16 << 10

#: Says that the item is in the memory whose descriptor comes along: no count of parts begins so.
_MEMORY = b"memory"
#: Lengths of the pickle and of each of its buffers.
_COUNT = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")


class QueueClosed(ValueError):
    """The queue was closed: nothing can be put any more, and everything that was in it has been taken."""


class Queue:
    """First in, first out, between any threads and processes of one machine: bounded, ordered, and each item is taken once.

    Pass it to a process when that is started, as an argument (with any start method). Items are pickled, so that both sides own their
    copy; arrays of more than a few kilobytes travel in anonymous memory and not through a pipe, and need no ``/dev/shm``. Nothing in
    it can be left locked: the kernel keeps it, and a process that is killed while it puts or takes an item loses that item at most,
    and its place. Who waits for an item of a process that was killed waits on, for others may put: use a ``timeout`` there, or watch the
    process. What was put and not taken is lost when the last process that knows the queue ends. Linux only.

    All methods may be called from any thread, and block without the GIL.

    Args:
        maxsize: items that are put and not taken yet, 1 to 1,024. Each large item holds a descriptor of the kernel, not of a process.
            Where the kernel gives a socket less room, which is up to the administrator (``net.core.wmem_max``; its default is enough
            for 554 items), a larger number is a ``ValueError``.
    """

    def __init__(self, maxsize: int) -> None:
        if not hasattr(type(maxsize), "__index__") or isinstance(maxsize, bool):
            raise TypeError(f"maxsize of a queue should be a whole number, but got {maxsize!r}")
        maxsize = operator.index(maxsize)
        if not 1 <= maxsize <= 1024:
            raise ValueError(f"maxsize of a queue should be 1 to 1024, but got {maxsize}")
        self.maxsize = maxsize
        self._out, self._in = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._out, self._in):
            end.setblocking(False)
        room = _enlarge(self._out, min(_ROOM, maxsize * (INLINE + _LARGEST_BLOCK)), maxsize * _SMALLEST)
        if room < maxsize * _SMALLEST:
            raise ValueError(
                f"maxsize={maxsize} of a queue is too large for this system, whose sockets have room for {room // _SMALLEST} items: use a "
                f"smaller one, or raise the limit (sysctl net.core.wmem_max={maxsize * _SMALLEST // 2})"
            )
        self._inline = _inline(room // maxsize)
        # How many may still be put: a semaphore that no process can take to its grave but for one place.
        self._places = os.eventfd(maxsize, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "maxsize": self.maxsize,
            "inline": self._inline,
            "out": self._out,
            "in": self._in,
            "places": reduction.DupFd(self._places),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.maxsize, self._inline, self._out, self._in = state["maxsize"], state["inline"], state["out"], state["in"]
        for end in (self._out, self._in):
            end.setblocking(False)
        self._places = state["places"].detach()

    def __del__(self) -> None:
        # No contextlib: this module may be cleared already, when the interpreter ends.
        try:
            os.close(self._places)
            self._out.close()
            self._in.close()
        except (AttributeError, OSError):
            pass

    def put(self, item: Any, timeout: float | None = None) -> None:
        """Puts an item behind all others; waits while the queue is full, at most ``timeout`` seconds (0: not at all).

        Raises ``queue.Full`` then, :class:`QueueClosed` when the queue was closed, and what ``pickle`` raises.
        """
        message, descriptor = _packed(item, self._inline)
        try:
            deadline = None if timeout is None else time.monotonic() + timeout
            while True:
                try:
                    os.eventfd_read(self._places)
                    break
                except BlockingIOError:
                    self._wait(self._places, select.POLLIN, deadline, Full)
            try:
                self._send(message, descriptor, deadline)
            except BaseException:
                os.eventfd_write(self._places, 1)
                raise
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _send(self, message: bytes, descriptor: int | None, deadline: float | None) -> None:
        while True:
            try:
                if descriptor is None:
                    self._out.send(message)
                else:
                    socket.send_fds(self._out, [message], [descriptor])
                return
            except BlockingIOError:
                self._wait(self._out.fileno(), select.POLLOUT, deadline, Full)
            except BrokenPipeError:
                raise QueueClosed("the queue was closed: nothing can be put any more") from None

    def get(self, timeout: float | None = None) -> Any:
        """Takes the oldest item; waits for one, at most ``timeout`` seconds (0: not at all).

        Raises ``queue.Empty`` then, and :class:`QueueClosed` when the queue was closed and is empty.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        message, descriptors = self._receive(deadline)
        if not message:
            raise QueueClosed("the queue was closed, and all that was in it has been taken")
        os.eventfd_write(self._places, 1)
        return _unpacked(message, descriptors)

    def _receive(self, deadline: float | None) -> tuple[bytes, list[int]]:
        while True:
            try:
                if self._in.recv(len(_MEMORY), socket.MSG_PEEK) == _MEMORY:
                    # Where the process has no descriptor to spare, the kernel would drop the one that holds the item: told before it is
                    # taken.
                    os.close(os.dup(self._places))
                message, descriptors, flags, _ = socket.recv_fds(self._in, INLINE + 4096, 1, socket.MSG_CMSG_CLOEXEC)
                if flags & socket.MSG_CTRUNC:
                    os.eventfd_write(self._places, 1)
                    raise OSError(
                        errno.EMFILE,
                        "an item of the queue is lost: another thread took the process's last file descriptor while it was received. "
                        "Close files, or raise the limit (ulimit -n)",
                    )
                return message, descriptors
            except BlockingIOError:
                self._wait(self._in.fileno(), select.POLLIN, deadline, Empty)

    def _wait(self, descriptor: int, events: int, deadline: float | None, late: type[Exception]) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise late
        poll = select.poll()
        poll.register(self._in.fileno(), select.POLLRDHUP)
        poll.register(descriptor, events)
        poll.poll(None if left is None else left * 1000)
        if late is Full and self.closed:
            raise QueueClosed("the queue was closed: nothing can be put any more")

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called, in any process."""
        poll = select.poll()
        poll.register(self._in.fileno(), select.POLLRDHUP)
        return any(events & select.POLLRDHUP for _, events in poll.poll(0))

    def close(self) -> None:
        """Says, for all processes, that nothing more will be put. What is in it can still be taken."""
        with contextlib.suppress(OSError):
            self._out.shutdown(socket.SHUT_WR)

    def __iter__(self) -> Iterator[Any]:
        """Takes items until the queue is closed and empty."""
        while True:
            try:
                yield self.get()
            except QueueClosed:
                return

    def __repr__(self) -> str:
        return f"<feedrate.Queue maxsize={self.maxsize}{' closed' if self.closed else ''}>"


def _enlarge(end: socket.socket, room: int, least: int) -> int:
    """Asks for a send buffer of ``room`` bytes, and insists on ``least`` where the process may; the bytes that it has then."""
    # The kernel takes twice the number.
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room // 2)
    if end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < least:
        with contextlib.suppress(PermissionError):
            end.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, least // 2)
    return end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def _inline(share: int) -> int:
    """The longest message for which a socket counts no more than ``share`` bytes."""
    if share >= INLINE + _LARGEST_BLOCK:
        return INLINE
    block = 1 << (share - _HEAD).bit_length() - 1
    return min(block, _LARGEST_BLOCK) - _TAIL


def _packed(item: Any, inline: int) -> tuple[bytes, int | None]:
    """A message, and the descriptor of the memory that holds the rest where it would be longer than ``inline``."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(item, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    parts = [memoryview(data), *views]
    head = _COUNT.pack(len(parts)) + b"".join(_LENGTH.pack(part.nbytes) for part in parts)
    total = sum(part.nbytes for part in parts)
    if len(head) + total <= inline:
        return b"".join([head, *parts]), None
    descriptor = os.memfd_create("feedrate-queue", os.MFD_CLOEXEC)
    try:
        for part in (memoryview(head), *parts):
            rest = part
            while rest.nbytes:
                rest = rest[os.write(descriptor, rest) :]
    except BaseException:
        os.close(descriptor)
        raise
    return _MEMORY, descriptor


def _unpacked(message: bytes, descriptors: list[int]) -> Any:
    memory: Any = bytearray(message)
    if descriptors:
        try:
            # Read, not mapped: Python's mmap keeps a descriptor for as long as somebody holds the item.
            memory = np.empty(os.fstat(descriptors[0]).st_size, np.uint8)
            rest = memoryview(memory)
            at = 0
            while rest.nbytes:
                count = os.preadv(descriptors[0], [rest], at)
                rest, at = rest[count:], at + count
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
    view = memoryview(memory)
    (count,) = _COUNT.unpack_from(view)
    at = _COUNT.size + count * _LENGTH.size
    parts = []
    for number in range(count):
        (length,) = _LENGTH.unpack_from(view, _COUNT.size + number * _LENGTH.size)
        parts.append(view[at : at + length])
        at += length
    return pickle.loads(parts[0], buffers=parts[1:])
