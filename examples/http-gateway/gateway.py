"""An HTTP service that limits its clients by API key, and refuses to work without its limits.

    uvicorn gateway:app

    REDIS_URL           redis://127.0.0.1:6379
    API_KEYS            demo (separate several with commas)
    QUOTA_PER_SECOND    10
    QUOTA_PER_MINUTE    100
    TIME_LIMIT_S        0.25
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Header, HTTPException, Response
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.maint_notifications import MaintNotificationsConfig

from limits import RateLimiter, SlidingWindow, TokenBucket

REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
API_KEYS = frozenset(os.environ.get("API_KEYS", "demo").split(","))
POLICIES = (
    TokenBucket("second", int(os.environ.get("QUOTA_PER_SECOND", "10")), 1),
    SlidingWindow("minute", int(os.environ.get("QUOTA_PER_MINUTE", "100")), 60),
)
# A decision takes well under a millisecond. Whatever takes this long is an outage.
TIME_LIMIT_S = float(os.environ.get("TIME_LIMIT_S", "0.25"))
CONNECTIONS = 32
RETRY_AFTER_OUTAGE_S = 1

log = logging.getLogger("uvicorn.error")


def connection_pool() -> BlockingConnectionPool:
    return BlockingConnectionPool.from_url(
        REDIS_URL,
        max_connections=CONNECTIONS,
        timeout=TIME_LIMIT_S,
        socket_connect_timeout=TIME_LIMIT_S,
        socket_timeout=TIME_LIMIT_S,
        # No retries: the call may have been counted, and an outage is no time for more calls.
        retry=Retry(NoBackoff(), 0),
        # With these notifications on, the pool hands out connections that a restart of Redis has closed.
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
    )


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with Redis.from_pool(connection_pool()) as redis:
        app.state.limiter = RateLimiter(redis, POLICIES)
        yield


app = FastAPI(lifespan=lifespan)


async def within_limits(response: Response, x_api_key: Annotated[str, Header()] = "") -> None:
    """Lets the request pass, with headers that say what is left, or answers it."""
    if x_api_key not in API_KEYS:
        raise HTTPException(401, "unknown API key")
    try:
        # One time limit for everything: a free connection, connecting, the call itself.
        decision = await asyncio.wait_for(app.state.limiter.take(x_api_key), TIME_LIMIT_S)
    except (RedisError, OSError, asyncio.TimeoutError) as error:
        log.error("no rate limit decision: %r", error)
        raise HTTPException(503, "try again later", {"Retry-After": str(RETRY_AFTER_OUTAGE_S)}) from error
    if decision.allowed:
        response.headers.update(decision.headers())
    elif decision.never:
        raise HTTPException(403, "no quota", decision.headers())
    else:
        raise HTTPException(429, "too many requests", decision.headers())


@app.get("/quote", dependencies=[Depends(within_limits)])
async def quote() -> dict[str, str]:
    return {"quote": "Everything flows."}


@app.get("/health")
async def health() -> dict[str, str]:
    """Reports on this process alone, which is alive without Redis, though it lets nothing pass."""
    return {"status": "ok"}
