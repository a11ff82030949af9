"""`kvbridge bench buffer`: what keys and peers cost in the control plane, with a transport that moves nothing."""
