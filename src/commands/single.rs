//! The flow of a call with one rule: RL.TOKENBUCKET, RL.SLIDING, RL.QUOTA, RL.CONCURRENCY, and their read-only forms.

use super::error::Error;
use super::kind::{Call, Commit, Kind, StoredRule};
use crate::host::{Argv, Command, CommandInfo, Context, Outcome};
use limiter::Reply;
use std::marker::PhantomData;

/// The command of a kind that writes.
pub struct Single<K>(PhantomData<K>);

impl<K: Kind> Command for Single<K> {
    type Error = Error;
    const INFO: CommandInfo = K::COMMAND;

    /// Parse, open, decide, store and replicate, publish, reply.
    fn call(context: Context<'_>, argv: Argv<'_>) -> Result<Outcome, Error> {
        let Call {
            rule,
            request,
            options,
        } = K::parse(argv).map_err(|error| Error::Syntax(error, &K::COMMAND))?;
        let server_now_ms = context.now_ms();
        let now_ms = options.now_ms.unwrap_or(server_now_ms);
        rule.check_time(now_ms)?;
        let mut key = context.open_for_writing(argv.arg(1));
        let decision = rule.decide(request, &mut key, now_ms)?;
        // Computed before anything is written, so that a call that fails changes nothing.
        let answer = decision.committed(options.unit);
        decision.commit(&mut key, server_now_ms)?;
        context.publish(key.close(), decision.outcome());
        reply(context, &answer);
        Ok(decision.outcome())
    }
}

/// The command of a kind that previews: what the other would decide now. It changes nothing.
pub struct Preview<K>(PhantomData<K>);

impl<K: Kind> Command for Preview<K> {
    type Error = Error;
    const INFO: CommandInfo = K::PREVIEW;

    /// Parse, open, decide, reply.
    fn call(context: Context<'_>, argv: Argv<'_>) -> Result<Outcome, Error> {
        let Call {
            rule,
            request,
            options,
        } = K::parse_preview(argv).map_err(|error| Error::Syntax(error, &K::PREVIEW))?;
        let now_ms = options.now_ms.unwrap_or_else(|| context.now_ms());
        rule.check_time(now_ms)?;
        let mut key = context.open_for_reading(argv.arg(1));
        let decision = rule.decide(request, &mut key, now_ms)?;
        reply(context, &decision.previewed(options.unit));
        Ok(decision.outcome())
    }
}

/// Four integers; with `ATLEAST` a fifth.
#[inline(always)]
fn reply(context: Context<'_>, reply: &Reply) {
    let [allowed, remaining, reset, retry] = reply.integers;
    match reply.granted {
        None => context.reply_integers(&reply.integers),
        Some(granted) => context.reply_integers(&[allowed, remaining, reset, retry, granted]),
    }
}
