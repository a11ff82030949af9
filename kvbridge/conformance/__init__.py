"""The contract as tests: what every backend must do, shipped with the contract itself.

Three doors over one configuration: `pytest --kvbridge-backend=NAME`, `kvbridge conformance NAME`, and
`kvbridge conformance compare A.json B.json`. The sentences stand in `docs/contract.md`.
"""

CONTRACT = "1.0"
"""Version of the contract. The first number changes when a backend that conformed may not any more."""

__all__ = ["CONTRACT"]
