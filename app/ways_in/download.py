"""A model's config fetched from the Hugging Face Hub, where the user asked for that and the Hub's own client is installed."""

from __future__ import annotations

from meshwright.app.catalog.huggingface_ids import catalogue_name_of
from meshwright.app.ways_in.hub_cache import CONFIG, cached_config, is_model_id
from meshwright.costmodels.errors import InvalidInputError, ModelError


def download_config(model: str) -> None:
    """Fetch the config of a Hub id into the cache; nothing where it is there, or the catalogue has it.

    Raises InvalidInputError without ``huggingface_hub``, ModelError for what can't be fetched.
    """
    if catalogue_name_of(model) is not None or not is_model_id(model) or cached_config(model) is not None:
        return
    try:
        import huggingface_hub
    except ImportError:
        raise InvalidInputError(
            "--download needs the package huggingface_hub, which is not installed",
            given=model,
            remedy="pip install huggingface_hub; or give the path of a config.json",
        ) from None
    try:
        huggingface_hub.hf_hub_download(model, CONFIG)
    except Exception as error:  # the client raises errors of its own, of requests and of the system
        raise ModelError(
            f"the config can't be fetched: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            given=model,
            remedy=f"look at https://huggingface.co/{model}; a gated model needs: hf auth login",
        ) from None
