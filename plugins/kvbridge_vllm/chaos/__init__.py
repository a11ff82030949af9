"""`kvbridge chaos`: two prefill and two decode engines and a router under load, while engines and messages fail.

A seed gives everything: which request goes when, with which prompt and by which way, and which fault strikes whom,
when and for how long. What the promise "no wrong tokens, no hang, no leak" means here:

- *right*: the answer has the tokens that an engine without connector gave to the same prompt before.
- *error*: the client was told: an HTTP status, a `finish_reason` "error" or "abort", or a broken connection.
- *wrong*: other tokens, without a word. None may be.
- *hang*: no answer within a deadline that is far above the longest fault. None may be.
- *left*: the client went away, as it was meant to; *stranded*: it asked for a prefill, and never for the rest.
- *leak*: after all faults are over an engine has requests or blocks in use, kvbridge holds values, a file in
  /dev/shm or a process is left. None may be.
- *recovered*: from the end of a fault until the next right answer in which that engine had a part. A kill ends when
  the engine that was started again is healthy, every other fault when it ceases.

Engines are killed with SIGKILL and started again on the same port; stopped with SIGSTOP, for less and for more time
than `peer_timeout`; and their control messages come late, get lost one by one, or all of them (a partition).
"""
