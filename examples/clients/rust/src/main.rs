//! redis-rl from Rust, with the redis crate: one call, a pipelined batch, a preview, a refund, two limits at once.

use redis::{FromRedisValue, ParsingError, RedisResult, Value, cmd};

const CAPACITY: u32 = 5;
/// One token in ten seconds.
const REFILL_RATE: f64 = 0.1;
const LIMIT: u32 = 100;
const WINDOW_S: u32 = 60;

/// The four integers. With MS the two times are milliseconds from now.
struct Decision {
    allowed: u8,
    remaining: u64,
    reset: i64,
    retry_after: i64,
}

impl FromRedisValue for Decision {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let (allowed, remaining, reset, retry_after) = redis::from_redis_value(value)?;
        Ok(Self {
            allowed,
            remaining,
            reset,
            retry_after,
        })
    }
}

fn main() -> RedisResult<()> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".into());
    let mut connection = redis::Client::open(url)?.get_connection()?;

    // The hash tag puts all of a tenant's limiters into one cluster slot, which RL.ALL needs.
    let tenant = format!("{{example-{}}}", std::process::id());
    let (burst, minute) = (format!("{tenant}:burst"), format!("{tenant}:minute"));

    let mut token_bucket = cmd("RL.TOKENBUCKET");
    token_bucket.arg((&burst, CAPACITY, REFILL_RATE));

    let one: Decision = token_bucket.query(&mut connection)?;
    println!(
        "one call: allowed {}, remaining {}, full at {}, retry after {} s",
        one.allowed, one.remaining, one.reset, one.retry_after
    );

    // One round trip for five calls. No MULTI, since each of them is atomic by itself.
    let mut pipeline = redis::pipe();
    for _ in 0..5 {
        pipeline.add_command(token_bucket.clone());
    }
    let batch: Vec<Decision> = pipeline.query(&mut connection)?;
    let words: Vec<_> = batch
        .iter()
        .map(|decision| {
            if decision.allowed == 1 {
                "allowed"
            } else {
                "denied"
            }
        })
        .collect();
    println!("batch of five: {}", words.join(" "));

    let preview: Decision = cmd("RL.TOKENBUCKET_RO")
        .arg((&burst, CAPACITY, REFILL_RATE, "MS"))
        .query(&mut connection)?;
    println!(
        "preview: allowed {}, retry after {} ms",
        preview.allowed, preview.retry_after
    );

    let refund: Decision = token_bucket
        .clone()
        .arg(("REFUND", 2))
        .query(&mut connection)?;
    println!("refund of two: remaining {}", refund.remaining);

    for cost in [1, 3] {
        let (allowed, of_burst, of_minute): (u8, Decision, Decision) = cmd("RL.ALL")
            .arg((2, &burst, &minute))
            .arg(("TOKENBUCKET", CAPACITY, REFILL_RATE, "COST", cost))
            .arg(("SLIDING", LIMIT, WINDOW_S))
            .query(&mut connection)?;
        println!(
            "both limits, cost {cost}: allowed {allowed}, remaining {} and {}",
            of_burst.remaining, of_minute.remaining
        );
    }
    Ok(())
}
