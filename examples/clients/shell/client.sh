#!/bin/sh
# redis-rl from a shell, with redis-cli: one call, a pipelined batch, a preview, a refund, two limits at once.
set -eu

capacity=5
refill_rate=0.1 # one token in ten seconds
limit=100 window_s=60

# When its output is not a terminal, redis-cli prints bare integers, one per line. -e: an error ends the script.
cli() {
    "${REDIS_CLI:-redis-cli}" -u "${REDIS_URL:-redis://127.0.0.1:6379}" -e "$@"
}

# The hash tag puts all of a tenant's limiters into one cluster slot, which RL.ALL needs.
tenant="{example-$$}"
burst="$tenant:burst"
minute="$tenant:minute"

# The assignment, unlike `set -- $(...)`, ends the script if the call failed.
reply=$(cli RL.TOKENBUCKET "$burst" $capacity $refill_rate)
set -- $reply
echo "one call: allowed $1, remaining $2, full at $3, retry after $4 s"

# Commands on standard input share one connection, with one round trip each. A reply is four lines, the first: allowed or not.
reply=$(for _ in 1 2 3 4 5; do echo "RL.TOKENBUCKET $burst $capacity $refill_rate"; done | cli)
echo "batch of five:" $(echo "$reply" | awk 'NR % 4 == 1 { print $1 ? "allowed" : "denied" }')

reply=$(cli RL.TOKENBUCKET_RO "$burst" $capacity $refill_rate MS)
set -- $reply
echo "preview: allowed $1, retry after $4 ms"

# --pipe sends its whole input at once and only counts the replies, which is enough for refunds.
for _ in 1 2; do echo "RL.TOKENBUCKET $burst $capacity $refill_rate REFUND 1"; done | cli --pipe >/dev/null
reply=$(cli RL.TOKENBUCKET_RO "$burst" $capacity $refill_rate)
set -- $reply
echo "refund of two: remaining $2"

for cost in 1 3; do
    reply=$(cli RL.ALL 2 "$burst" "$minute" \
        TOKENBUCKET $capacity $refill_rate COST $cost \
        SLIDING $limit $window_s)
    # The nested reply is printed flat: one integer for the call, then four for each rule.
    set -- $reply
    echo "both limits, cost $cost: allowed $1, remaining $3 and $7"
done
