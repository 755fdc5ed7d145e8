"""Send requests to an OpenAI-compatible server: rate-limited, concurrent, retried with exponential backoff."""

import math
import os
import random
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Self

import httpx2

from heldin.base.errors import InputError, ResumableError

# Timeout, too early, too many requests, and a server's own faults, but not 501: what is not implemented stays so.
TRY_AGAIN = {408, 425, 429, *range(500, 600)} - {501}
LONGEST_WAIT = 60.0  # seconds between two tries
LONGEST_ASKED_WAIT = 600.0  # seconds; a server that asks for more ends the work until it is started again
LONGEST_QUOTE = 200  # characters


class RefusedRequest(InputError):
    """The server refused this request, and would refuse it again. ``status`` is the HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, status)  # both: an exception is pickled by its arguments
        self.message, self.status = message, status

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Endpoint:
    """The address of served models, and the rate of requests. Contains no secret: the API key is in the environment.

    Attributes:
        url: address to which /completions is appended, such as https://host/v1.
        key_variable: name of the environment variable that holds the API key; None: heldin sends no key.
        requests_per_minute: maximum rate; None: no limit.
        concurrency: maximum number of requests in flight.
        timeout: seconds without data after which heldin gives up a request.
        max_tries: maximum number of tries per request, including the first.
        first_wait: mean seconds before the second try, varied by up to half; the wait doubles with every further try,
            up to a minute.

    Raises:
        InputError: the address is invalid or contains a secret, ``key_variable`` is the key instead of a variable's
            name, or a number is not positive.
    """

    url: str
    key_variable: str | None = None
    requests_per_minute: float | None = None
    concurrency: int = 4
    timeout: float = 120.0
    max_tries: int = 6
    first_wait: float = 1.0

    def __post_init__(self) -> None:
        try:
            url = httpx2.URL(self.url)
        except httpx2.InvalidURL as error:
            raise InputError(f"heldin cannot read the endpoint's address{self._said(error)}") from error
        # Checked before any message quotes the address, which goes into records and logs.
        if url.userinfo or url.query or url.fragment:
            raise InputError(
                "the endpoint's address contains a password, a query or a fragment, and heldin would record this"
                " part. Remove this part, and give the key by the name of an environment variable"
            )
        if url.scheme not in ("http", "https") or not url.host:
            raise InputError(f"the endpoint's address is not a URL{self._said(repr(self.url))}")
        if self.base.endswith("/completions"):  # also /chat/completions
            raise InputError(f"'{self.url}' is the address of a single API call: remove the part after /v1")
        # An invalid name may be the key itself, so the message does not quote it.
        if self.key_variable is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.key_variable):
            raise InputError("give the name of the environment variable that contains the API key, not the key itself")
        for name in ("requests_per_minute", "concurrency", "timeout", "max_tries", "first_wait"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"the endpoint's {name.replace('_', ' ')} is {value}: give a number above 0")

    def _said(self, fault: object) -> str:
        """Return the fault and the remedy as text. Does not quote an address that may contain a password."""
        return f"{'' if '@' in self.url else f' ({fault})'}: give an address such as https://host/v1"

    @property
    def base(self) -> str:
        """Return the address without a trailing slash."""
        return self.url.rstrip("/")

    def key(self) -> str | None:
        """Return the API key. Raises InputError if its variable is not set, or a header cannot contain its value."""
        if self.key_variable is None:
            return None
        key = os.environ.get(self.key_variable, "").strip()
        if not key:
            raise InputError("the environment variable for the API key is not set: export this variable")
        if not (key.isascii() and key.isprintable()):
            raise InputError("the API key in the environment contains characters that no key has: export the key again")
        return key


class Connection:
    """An open connection to an endpoint, shared by threads. Close it, or use it as a context manager."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        # Read once, when the connection opens: a missing key is reported before any work.
        self._key = endpoint.key()
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._client = httpx2.Client(headers=headers, timeout=endpoint.timeout)
        self._pace = Pace(endpoint.requests_per_minute)
        # Shared by all threads, without a lock: it only ever turns true.
        self._answered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def post_all(self, path: str, bodies: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Post every body, several at the same time. Answers are in the order of the bodies."""
        self._pace.start()
        with ThreadPoolExecutor(self.endpoint.concurrency) as threads:
            answers = [threads.submit(self.post, path, body) for body in bodies]
            try:
                return [answer.result() for answer in answers]
            except BaseException:  # an interrupt too: cancel the rest, so that only requests in flight are waited for
                self._pace.stop()
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def post_each(
        self, path: str, bodies: Sequence[Mapping[str, Any]]
    ) -> Iterator[tuple[int, dict[str, Any] | RefusedRequest]]:
        """Yield number and answer of each body when the answer arrives. A refusal is yielded, not raised.

        If a request finally fails, this method yields the earlier answers before it raises the error.
        """
        self._pace.start()
        threads = ThreadPoolExecutor(self.endpoint.concurrency)
        waiting = {threads.submit(self._post_or_refusal, path, body): i for i, body in enumerate(bodies)}
        failure: BaseException | None = None
        try:
            for future in as_completed(list(waiting)):
                failure = future.exception()
                if failure is not None:
                    break
                yield waiting.pop(future), future.result()
        finally:
            # Also where the caller stops or is interrupted: nothing more is sent.
            if not all(future.done() for future in waiting):
                self._pace.stop()
            threads.shutdown(cancel_futures=True)
        if failure is None:
            return
        # Those in flight when it failed have been answered, and paid for.
        for future, number in waiting.items():
            if not future.cancelled() and future.exception() is None:
                yield number, future.result()
        raise failure

    def _post_or_refusal(self, path: str, body: Mapping[str, Any]) -> dict[str, Any] | RefusedRequest:
        try:
            return self.post(path, body)
        except RefusedRequest as error:
            return error

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON object with which the server answers ``body``.

        Raises:
            RefusedRequest: the server refuses this request.
            InputError: no server answers at the address, or the server refuses the key.
            ResumableError: the server gave no complete answer in any try.
        """
        return self._ask("POST", path, body, self.endpoint.max_tries)

    def get(self, path: str, *, tries: int | None = None) -> dict[str, Any]:
        """Send a request without a body, otherwise like ``post``. ``tries`` limits the tries; None: the endpoint's
        limit."""
        return self._ask("GET", path, None, tries or self.endpoint.max_tries)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, tries: int) -> dict[str, Any]:
        failure = ""
        for attempt in range(tries):
            if attempt:
                self._pace.rest(min(LONGEST_WAIT, self.endpoint.first_wait * 2.0 ** (attempt - 1)) * _jitter())
            # A retry takes a turn as well, so that failures do not push the rate over the limit.
            self._pace.take_turn()
            try:
                response = self._client.request(method, f"{self.endpoint.base}{path}", json=body)
            except httpx2.ConnectError as error:
                if not self._answered:  # a wrong address; later it is a server that is down for a while
                    raise InputError(
                        f"nothing answers at '{self.endpoint.base}' ({error}): check that the server runs, and that"
                        " the address is right"
                    ) from error
                failure = f"no connection ({error})"
            except httpx2.RequestError as error:
                failure = f"{type(error).__name__} ({str(error) or 'no answer'})"
            else:
                self._answered = True
                if response.status_code not in TRY_AGAIN:
                    answer = self._answer(response)
                    if answer is not None:
                        return answer
                    # A truncated answer or a proxy's error page: either may be gone at the next try.
                    failure = "an answer that is not a JSON object"
                else:
                    failure = f"HTTP {response.status_code}{self._quoted(response)}"
                    self._honour_retry_after(response)
        raise ResumableError(
            f"'{self.endpoint.base}' failed {tries} times in a row, the last time with {failure}: run the same"
            " command again to continue"
        )

    def _answer(self, response: httpx2.Response) -> dict[str, Any] | None:
        """Return the JSON object of a response; None if the body is not a complete JSON object."""
        status = response.status_code
        if status in (401, 403):
            has = "refuses the API key" if self._key else "needs an API key, but none was given"
            raise InputError(
                f"'{self.endpoint.base}' {has} (HTTP {status}): name the environment variable of a valid key"
            )
        if status == 404:
            quoted = f"'{response.url}' answers HTTP 404{self._quoted(response)}"
            raise RefusedRequest(
                f"{quoted}: give the address up to /v1, and the model's name as the server lists it. If the server"
                " has only chats, add --chat",
                status,
            )
        if status != 200:
            raise RefusedRequest(f"'{response.url}' answers HTTP {status}{self._quoted(response)}", status)
        try:
            content = response.json()
        except ValueError:
            return None
        return content if isinstance(content, dict) else None

    def _honour_retry_after(self, response: httpx2.Response) -> None:
        """Pause all threads for as long as the server demands."""
        asked = _retry_after(response.headers.get("retry-after"))
        if asked is None:
            return
        if asked > LONGEST_ASKED_WAIT:
            raise ResumableError(
                f"'{self.endpoint.base}' asks to wait {asked / 60:,.0f} minutes (HTTP"
                f" {response.status_code}{self._quoted(response)}): run the same command after this time to"
                " continue"
            )
        self._pace.hold(asked)

    def _quoted(self, response: httpx2.Response) -> str:
        """Return the server's own error message, shortened and without the API key; "" if there is none."""
        try:
            content = response.json()
            error = content.get("error", content) if isinstance(content, dict) else content
            message = str(error.get("message", error) if isinstance(error, dict) else error)
        except ValueError:
            message = response.text
        message = " ".join(message.split()).rstrip(".")
        # Some servers quote the key they were sent.
        if self._key:
            message = message.replace(self._key, "***")
        return f": {message[:LONGEST_QUOTE]}" if message else ""


class Pace:
    """Evenly spaced turns for all threads, at most ``per_minute``. If the server demands a pause, all threads pause."""

    def __init__(self, per_minute: float | None) -> None:
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0  # of the next turn to give
        self._last = -math.inf  # of the last turn that was taken
        self._held_until = 0.0
        self._holds = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def take_turn(self) -> None:
        """Wait for this thread's turn."""
        while True:
            with self._lock:
                now, holds = time.monotonic(), self._holds
                # Turns that nobody took are not saved up: after a pause there is no burst.
                turn = max(now, self._next)
                self._next = turn + self._gap
            # Outside the lock: the turn is taken, and others may queue up behind it meanwhile.
            self.rest(turn - now)
            with self._lock:
                if holds == self._holds:
                    self._last = turn
                    return
            # The server asked for a pause while this thread waited: its turn is void.

    def rest(self, seconds: float) -> None:
        """Wait for some seconds. Raises ResumableError as soon as ``stop`` is called."""
        # An event and not ``sleep``, so that a wait of minutes ends when another request has failed for good.
        if self._stopped.wait(max(0.0, seconds)):
            raise ResumableError("stopped, because another request failed")

    def hold(self, seconds: float) -> None:
        """Give no thread a turn for this many seconds."""
        with self._lock:
            self._holds += 1
            self._held_until = max(self._held_until, time.monotonic() + seconds)
            # Void turns leave no gap behind: the rate counts from the last one that was taken.
            self._next = max(self._held_until, self._last + self._gap)

    def stop(self) -> None:
        """End all waits, because a request finally failed."""
        self._stopped.set()

    def start(self) -> None:
        """Allow threads to wait again."""
        self._stopped.clear()


def _jitter() -> float:
    # So that threads that failed together do not all retry at the same moment.
    return random.uniform(0.5, 1.5)


def _retry_after(header: str | None) -> float | None:
    """Return the seconds in a Retry-After header (RFC 9110, section 10.2.3: seconds or a date); None if it is
    invalid."""
    if not header:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None
