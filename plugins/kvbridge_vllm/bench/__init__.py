"""`kvbridge bench serve`: real engines, a prefill and a decode engine for each connector, in one interleaved run.

Definitions, which are printed with the figures:

- *time to first token* (TTFT): from sending the decode leg of a request, with what the prefill leg returned, until its
  first token is here. The prefill engine has computed the prompt before, so that what is measured is the hand-over and
  one step of the decode engine.
- *requests per second*: whole requests, both legs one after the other, over the time of all of them.
- *between tokens*: the median time between two tokens of an answer.
- *floor*: TTFT of the same prompt at an engine that has its KV already, plus one plain copy of that KV.
- *right*: answers that are equal to those of an engine that had the KV already.

Engines that are not being measured are stopped (SIGSTOP): they cost the others nothing, and all are measured in every
round, one after the other.
"""
