"""Every family whose config.json files can be read, by model_type."""

from __future__ import annotations

from meshwright.app.importers.families.cohere import COHERE_FAMILIES
from meshwright.app.importers.families.deepseek import DEEPSEEK_FAMILIES
from meshwright.app.importers.families.encoders import ENCODER_FAMILIES
from meshwright.app.importers.families.family import Family
from meshwright.app.importers.families.gemma import GEMMA_FAMILIES
from meshwright.app.importers.families.glm import GLM_FAMILIES
from meshwright.app.importers.families.gpt import GPT_FAMILIES
from meshwright.app.importers.families.gpt_kin import GPT_KIN_FAMILIES
from meshwright.app.importers.families.hybrid import HYBRID_FAMILIES
from meshwright.app.importers.families.linear_attention import LINEAR_ATTENTION_FAMILIES
from meshwright.app.importers.families.llama import LLAMA_FAMILIES
from meshwright.app.importers.families.llama_kin import LLAMA_KIN_FAMILIES
from meshwright.app.importers.families.mixed.deepseek_v4 import DEEPSEEK_V4_FAMILIES
from meshwright.app.importers.families.mixed.gemma4 import GEMMA4_FAMILIES
from meshwright.app.importers.families.mixed.lfm import LFM_FAMILIES
from meshwright.app.importers.families.mixed.mimo import MIMO_FAMILIES
from meshwright.app.importers.families.mixed.minimax import MINIMAX_FAMILIES
from meshwright.app.importers.families.mixed.nemotron_nas import NEMOTRON_NAS_FAMILIES
from meshwright.app.importers.families.mixed.step import STEP_FAMILIES
from meshwright.app.importers.families.moe import MOE_FAMILIES
from meshwright.app.importers.families.moe_kin import MOE_KIN_FAMILIES
from meshwright.app.importers.families.nemotron import NEMOTRON_FAMILIES
from meshwright.app.importers.families.olmo import OLMO_FAMILIES
from meshwright.app.importers.families.phi import PHI_FAMILIES
from meshwright.app.importers.families.starcoder import STARCODER_FAMILIES

_GROUPS = (
    LLAMA_FAMILIES,
    GEMMA_FAMILIES,
    GPT_FAMILIES,
    GPT_KIN_FAMILIES,
    MOE_FAMILIES,
    MOE_KIN_FAMILIES,
    DEEPSEEK_FAMILIES,
    HYBRID_FAMILIES,
    NEMOTRON_FAMILIES,
    LINEAR_ATTENTION_FAMILIES,
    COHERE_FAMILIES,
    GLM_FAMILIES,
    LLAMA_KIN_FAMILIES,
    OLMO_FAMILIES,
    PHI_FAMILIES,
    STARCODER_FAMILIES,
    DEEPSEEK_V4_FAMILIES,
    GEMMA4_FAMILIES,
    LFM_FAMILIES,
    MIMO_FAMILIES,
    MINIMAX_FAMILIES,
    NEMOTRON_NAS_FAMILIES,
    STEP_FAMILIES,
    ENCODER_FAMILIES,
)

FAMILIES: dict[str, Family] = {family.model_type: family for group in _GROUPS for family in group}
