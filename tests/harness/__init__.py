"""What the tests on real servers stand on.

clock.py        the time of the calls, and that of a server
server.py       a dedicated redis-server: start, stop, kill, restart, AOF, log
connection.py   RESP as it goes over the wire
replica.py      the replication stream, as a replica without the module receives it
sentinel.py     a Sentinel that watches a master
cluster.py      three masters and a replica of each
state.py        the bytes of a limiter's key
kinds.py        the arithmetic of every kind of limiter in plain Python, with no look at the module
model.py        the commands, as a server with nothing but the model in it would answer them
periods.py      when the period of a quota begins and ends
traces.py       random calls of every kind, by a model and a server side by side
scripts.py      the Lua reference scripts, called with the arguments of the commands
parity.py       traces: made, run, compared, made smaller
program.py      programs that are run to their end
refusals.py     calls that must be refused
tally.py        the counts that the summary of a test run shows
"""
