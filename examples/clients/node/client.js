// redis-rl from Node, with node-redis: one call, a pipelined batch, a preview, a refund, two limits at once.

import { createClient } from "redis";

const CAPACITY = "5";
const REFILL_RATE = "0.1"; // one token in ten seconds
const LIMIT = "100";
const WINDOW_S = "60";

/** Names the four integers. With MS the two times are milliseconds from now. */
const decision = ([allowed, remaining, reset, retryAfter]) => ({ allowed, remaining, reset, retryAfter });

const client = createClient({ url: process.env.REDIS_URL ?? "redis://127.0.0.1:6379" });
// Without a listener, a lost connection would end the process.
client.on("error", (error) => console.error(error.message));
await client.connect();

// The hash tag puts all of a tenant's limiters into one cluster slot, which RL.ALL needs.
const tenant = `{example-${process.pid}}`;
const burst = `${tenant}:burst`;
const minute = `${tenant}:minute`;

/** Takes from the tenant's bucket, or does what the further arguments say. */
const tokenBucket = async (...words) =>
  decision(await client.sendCommand(["RL.TOKENBUCKET", burst, CAPACITY, REFILL_RATE, ...words]));

const one = await tokenBucket();
console.log(
  `one call: allowed ${one.allowed}, remaining ${one.remaining}, full at ${one.reset}, retry after ${one.retryAfter} s`,
);

// Calls made in one tick go out together, and their replies come back in order: a pipeline.
const batch = await Promise.all(Array.from({ length: 5 }, () => tokenBucket()));
console.log("batch of five:", ...batch.map(({ allowed }) => (allowed ? "allowed" : "denied")));

const preview = decision(
  await client.sendCommand(["RL.TOKENBUCKET_RO", burst, CAPACITY, REFILL_RATE, "MS"]),
);
console.log(`preview: allowed ${preview.allowed}, retry after ${preview.retryAfter} ms`);

const refund = await tokenBucket("REFUND", "2");
console.log(`refund of two: remaining ${refund.remaining}`);

for (const cost of ["1", "3"]) {
  const [allowed, ...rules] = await client.sendCommand([
    ...["RL.ALL", "2", burst, minute],
    ...["TOKENBUCKET", CAPACITY, REFILL_RATE, "COST", cost],
    ...["SLIDING", LIMIT, WINDOW_S],
  ]);
  const [ofBurst, ofMinute] = rules.map(decision);
  console.log(
    `both limits, cost ${cost}: allowed ${allowed}, remaining ${ofBurst.remaining} and ${ofMinute.remaining}`,
  );
}

client.destroy();
