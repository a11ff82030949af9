"""The engine-neutral connector: hand-over of KV from a prefill engine to a decode engine."""
