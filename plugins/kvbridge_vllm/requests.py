"""vLLM's `Request`, seen as the engine-neutral halves want it."""

from __future__ import annotations

from typing import Any

from kvbridge.abc.connector import RequestView
from kvbridge.connector.digest import prompt_digest


def view(request: Any) -> RequestView:
    """Describe a request. The digest is computed only when it is asked for."""
    params = request.kv_transfer_params
    return RequestView(
        id=request.request_id,
        num_tokens=request.num_prompt_tokens,
        params=params if isinstance(params, dict) else None,
        digest=lambda: prompt_digest(request.prompt_token_ids, dimensions(request)),
        plain=request.prompt_token_ids is not None
        and request.prompt_embeds is None
        and request.prompt_is_token_ids is None,
    )


def dimensions(request: Any) -> list[tuple[str, str]]:
    """List everything beside the tokens that the KV of a prompt depends on."""
    found: list[tuple[str, str]] = []
    if request.cache_salt is not None:
        found.append(("cache_salt", request.cache_salt))
    lora = request.lora_request
    if lora is not None:
        found.append(("adapter", f"{lora.lora_name}\0{lora.lora_path}"))
    for index, feature in enumerate(request.mm_features or ()):
        place = feature.mm_position
        found.append((f"multimodal {index}", f"{feature.identifier}\0{place.offset}\0{place.length}"))
    return found
