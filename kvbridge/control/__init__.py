"""The control plane: messages, an endpoint per process with its links to peers, and the rendezvous of a pipe."""
