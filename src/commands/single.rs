//! The flow of a call with one rule: RL.TOKENBUCKET, RL.SLIDING, and their read-only forms.

use super::error::Error;
use super::kind::{Commit, Kind, Limit};
use crate::host::{Argv, Command, CommandInfo, Context, Outcome};
use limiter::Request;
use std::marker::PhantomData;
use syntax::{SingleArgs, parse_single, parse_single_preview};

/// The command of a kind that writes.
pub struct Single<K>(PhantomData<K>);

impl<K: Kind + Limit<Request = Request>> Command for Single<K> {
    type Error = Error;
    const INFO: CommandInfo = K::COMMAND;

    /// Parse, open, decide, store and replicate, publish, reply.
    fn call(context: Context<'_>, argv: Argv<'_>) -> Result<Outcome, Error> {
        let SingleArgs::<K> {
            rule,
            request,
            options,
        } = parse_single(argv.iter_from(2)).map_err(|error| Error::Syntax(error, &K::COMMAND))?;
        let server_now_ms = context.now_ms();
        let now_ms = options.now_ms.unwrap_or(server_now_ms);
        let mut key = context.open_for_writing(argv.key(1));
        let decision = rule.decide(request, &mut key, now_ms)?;
        // Computed before anything is written, so that a call that fails changes nothing.
        let reply = decision.committed(options.unit);
        decision.commit(&mut key, server_now_ms)?;
        context.publish(key.close(), decision.outcome());
        context.reply_integers(&reply.integers);
        Ok(decision.outcome())
    }
}

/// The command of a kind that previews: what the other would decide now. It changes nothing.
pub struct Preview<K>(PhantomData<K>);

impl<K: Kind + Limit<Request = Request>> Command for Preview<K> {
    type Error = Error;
    const INFO: CommandInfo = K::PREVIEW;

    /// Parse, open, decide, reply.
    fn call(context: Context<'_>, argv: Argv<'_>) -> Result<Outcome, Error> {
        let SingleArgs::<K> {
            rule,
            request,
            options,
        } = parse_single_preview(argv.iter_from(2))
            .map_err(|error| Error::Syntax(error, &K::PREVIEW))?;
        let now_ms = options.now_ms.unwrap_or_else(|| context.now_ms());
        let mut key = context.open_for_reading(argv.key(1));
        let decision = rule.decide(request, &mut key, now_ms)?;
        context.reply_integers(&decision.previewed(options.unit).integers);
        Ok(decision.outcome())
    }
}
