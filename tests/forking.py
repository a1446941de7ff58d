"""Programs that import torch, each in a fork of one process that has done nothing but import it.

Importing torch takes seconds of each program's time, more than most programs need for the rest. To
its program a fork is an interpreter of its own: no module is there but torch's and what those
import, and streams, exit and exit status are its own. What reaches further back runs in a real one,
by `subprocess`: options of the interpreter, what torch reads of the environment when it is
imported, how long an import takes or what it brings, how an interpreter ends around live graphs.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pathlib
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import types

# A thread more would be lost in a fork, with the locks that it holds. No program sees a GPU.
FIXED = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
MOST = 1 << 17


class Forks:
    """Runs Python programs; the process that forks starts with the first."""

    def __init__(self) -> None:
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(
        self,
        *command: object,
        cwd: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        """What `subprocess.run([sys.executable, *command])` would return, with its output.

        Args:
            command: The interpreter's arguments: a script, or `-c` and code, or `-m` and a module,
                and then the program's.
            cwd: Where it runs, if not here.
            timeout: Seconds until it is killed and TimeoutExpired raised.
            environment: Variables besides those of this process.
        """
        arguments = [str(word) for word in command]
        variables = {**os.environ, **environment, **FIXED}
        if sys.platform != "linux":  # Elsewhere libraries are not fit to be forked.
            return subprocess.run(
                [sys.executable, *arguments],
                capture_output=True,
                text=True,
                check=False,
                cwd=cwd,
                timeout=timeout,
                env=variables,
            )
        message = json.dumps([arguments, os.fspath(cwd or os.getcwd()), variables]).encode()
        if len(message) > MOST:
            raise ValueError(f"the program and its environment have more than {MOST} bytes")
        channel = self._channel or self._start()
        with contextlib.ExitStack() as stack:
            streams = [
                stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))
                for _ in ("output", "errors")
            ]
            socket.send_fds(channel, [message], [stream.fileno() for stream in streams])
            pid = self._answer(channel)
            channel.settimeout(timeout)
            try:
                status = self._answer(channel)
            except BaseException as error:  # A test's own timeout too.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                channel.settimeout(None)
                self._answer(channel)
                if isinstance(error, TimeoutError) and timeout is not None:
                    raise subprocess.TimeoutExpired(arguments, timeout) from error
                raise
            finally:
                channel.settimeout(None)
            for stream in streams:
                stream.seek(0)
            output, errors = (stream.read() for stream in streams)
        return subprocess.CompletedProcess([sys.executable, *arguments], status, output, errors)

    def close(self) -> None:
        """Ends the process that forks."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.wait()
            self._process = None

    def _start(self) -> socket.socket:
        # Packets, because a message and its descriptors are to arrive as one.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdout=subprocess.DEVNULL,
                env={**os.environ, **FIXED},
            )
        self._channel = ours
        return ours

    def _answer(self, channel: socket.socket) -> int:
        if not (answer := channel.recv(MOST)):
            raise RuntimeError("the process that forks has ended")
        return int(answer)


def fork(descriptor: int) -> list[str] | None:
    """Returns in each fork, with what is to run there; and at the end without, where they began."""
    import torch._dynamo  # noqa: F401 (what the first capture of a process imports)

    # Else each fork copies it all, when it collects garbage and when it ends.
    gc.collect()
    gc.freeze()
    alone = len(os.listdir("/proc/self/task")) == 1
    channel = socket.socket(fileno=descriptor)
    while True:
        message, streams, *_ = socket.recv_fds(channel, MOST, 2)
        if not message:
            return None
        if not (pid := os.fork()):
            break
        for stream in streams:
            os.close(stream)
        channel.send(b"%d" % pid)
        channel.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    channel.close()
    arguments, folder, variables = json.loads(message)
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    if not alone:
        os.execv(sys.executable, [sys.executable, *arguments])
    return list(arguments)


def become(arguments: list[str]) -> None:
    """Runs what the interpreter's arguments name, as its main program."""
    kind, *rest = arguments
    if kind == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    if kind == "-c":
        code, name = rest.pop(0), "<string>"
        sys.argv, sys.path[0] = [kind, *rest], ""
    else:
        script = pathlib.Path(kind).absolute()
        code, name = script.read_text(encoding="utf-8"), str(script)
        sys.argv, sys.path[0] = arguments, str(script.resolve().parent)
        main.__file__ = name
    sys.modules["__main__"] = main
    exec(compile(code, name, "exec", dont_inherit=True), main.__dict__)


if __name__ == "__main__":
    if program := fork(int(sys.argv[1])):
        become(program)
