"""A gateway for a language model, which limits its tenants and refuses to work without its limits.

    python gateway.py

    PORT                   8000 (0: any free one)
    REDIS_URL              redis://127.0.0.1:6379
    API_KEYS               demo (separate several with commas)
    REQUESTS_PER_MINUTE    60
    TOKENS_PER_MINUTE      10000
    TOKENS_PER_MONTH       1000000
    CALLS_AT_ONCE          5
    LEASE_S                30
    TIME_LIMIT_S           0.25 for each attempt to reach Redis
    SECONDS_PER_TOKEN      0.02, of the model that is no model
"""

import json
import logging
import math
import os
import signal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import redis
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from model import Answer, ModelFailed, ModelUnavailable
from reservations import MS_PER_S, Call, Denied, NoDecision, Plan, Reservations

HOST = "127.0.0.1"
PORT = int(os.environ.get("PORT", "8000"))
REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
API_KEYS = frozenset(os.environ.get("API_KEYS", "demo").split(","))
PLAN = Plan(
    requests_per_minute=int(os.environ.get("REQUESTS_PER_MINUTE", "60")),
    tokens_per_minute=int(os.environ.get("TOKENS_PER_MINUTE", "10000")),
    tokens_per_month=int(os.environ.get("TOKENS_PER_MONTH", "1000000")),
    calls_at_once=int(os.environ.get("CALLS_AT_ONCE", "5")),
)
LEASE_S = float(os.environ.get("LEASE_S", "30"))
# A decision takes well under a millisecond. Whatever takes this long is an outage.
TIME_LIMIT_S = float(os.environ.get("TIME_LIMIT_S", "0.25"))
SECONDS_PER_TOKEN = float(os.environ.get("SECONDS_PER_TOKEN", "0.02"))

REDIS_CONNECTIONS = 32
RETRY_AFTER_OUTAGE_S = 1
CHARACTERS_PER_TOKEN = 4
#: What is reserved for an answer whose length the client does not limit. Most are shorter; the others pay the rest.
USUAL_ANSWER = 100
LARGEST_BODY = 1 << 20

log = logging.getLogger("gateway")


class BadRequest(Exception):
    """The body is not what this service takes."""


class UnknownKey(Exception):
    """The API key belongs to no tenant."""


def connection_pool() -> redis.BlockingConnectionPool:
    return redis.BlockingConnectionPool.from_url(
        REDIS_URL,
        max_connections=REDIS_CONNECTIONS,
        timeout=TIME_LIMIT_S,
        socket_connect_timeout=TIME_LIMIT_S,
        socket_timeout=TIME_LIMIT_S,
        # Reservations sends again itself, since it has to know whether a reply was lost.
        retry=Retry(NoBackoff(), 0),
        # With these notifications on, the pool hands out connections that a restart of Redis has closed.
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
    )


class Gateway(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = False  # closing waits for the calls that run, which then settle

    def __init__(self, reservations: Reservations) -> None:
        self.reservations = reservations
        super().__init__((HOST, PORT), Handler)


class Handler(BaseHTTPRequestHandler):
    server: Gateway
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_POST(self) -> None:
        self.close_connection = True
        try:
            self._serve()
        except (ModelFailed, OSError) as error:
            # The answer ends without its last chunk, so that a client sees it is not complete.
            log.warning("an answer was cut short: %r", error)

    def _serve(self) -> None:
        try:
            prompt, max_tokens = self._read()
            answer_tokens = USUAL_ANSWER if max_tokens is None else max_tokens
            estimate = math.ceil(len(prompt) / CHARACTERS_PER_TOKEN) + answer_tokens
            with self.server.reservations.call(self._api_key(), estimate) as call:
                self._answer(call, Answer(prompt, max_tokens, SECONDS_PER_TOKEN))
            # Settled: what a client sees as complete is charged for.
            self.wfile.write(b"0\r\n\r\n")
        except BadRequest as error:
            self._reply(400, str(error))
        except UnknownKey:
            self._reply(401, "unknown API key")
        except Denied as denied:
            if denied.retry_after_ms is None:
                self._reply(403, str(denied))
            else:
                self._reply(429, str(denied), math.ceil(denied.retry_after_ms / MS_PER_S))
        except ModelUnavailable as error:
            self._reply(502, str(error))
        except NoDecision as error:
            log.error("no decision: %s", error)
            self._reply(503, "try again later", RETRY_AFTER_OUTAGE_S)

    def _api_key(self) -> str:
        api_key = self.headers.get("X-API-Key", "")
        if api_key not in API_KEYS:
            raise UnknownKey
        return api_key

    def _read(self) -> tuple[str, int | None]:
        try:
            length = int(self.headers.get("Content-Length", ""))
            if not 0 <= length <= LARGEST_BODY:
                raise BadRequest(f"the body may have at most {LARGEST_BODY} bytes")
            body = json.loads(self.rfile.read(length))
            prompt, max_tokens = body["prompt"], body.get("max_tokens")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise BadRequest('the body must be like {"prompt": "Hello", "max_tokens": 10}') from error
        if not isinstance(prompt, str) or not prompt.strip():
            raise BadRequest("prompt must be a text")
        if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
            raise BadRequest("max_tokens must be an integer of at least 1")
        return prompt, max_tokens

    def _answer(self, call: Call, answer: Answer) -> None:
        """Passes the tokens on as they come. `used` counts them before, so a client that hangs up pays for each."""
        call.used = answer.prompt_tokens
        self.send_response(200)
        # For the logs of both sides. It is only ever sent: a request's own X-Request-Id is not read.
        self.send_header("X-Request-Id", call.id)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        for token in answer:
            call.used += 1
            data = f"{token} ".encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _reply(self, status: int, text: str, retry_after_s: int | None = None) -> None:
        body = f"{text}\n".encode()
        self.send_response(status)
        if retry_after_s is not None:
            self.send_header("Retry-After", str(retry_after_s))
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, template: str, *words: object) -> None:
        log.debug(template, *words)


def main() -> None:
    logging.basicConfig(format="%(levelname)s %(message)s")
    # Ended by `kill`, it lets the calls that run come to their end, as after ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    reservations = Reservations(redis.Redis(connection_pool=connection_pool()), PLAN, LEASE_S)
    try:
        with Gateway(reservations) as server:
            print(f"listening on http://{HOST}:{server.server_port}", flush=True)
            server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        reservations.close()


if __name__ == "__main__":
    main()
