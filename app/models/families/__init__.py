"""Every family whose config.json files can be read, by model_type."""

from __future__ import annotations

from meshwright.app.models.families.bailing import BAILING_FAMILIES
from meshwright.app.models.families.cohere import COHERE_FAMILIES
from meshwright.app.models.families.dbrx import DBRX_FAMILIES
from meshwright.app.models.families.deepseek import DEEPSEEK_FAMILIES, DEEPSEEK_V4_FAMILIES
from meshwright.app.models.families.encoders import ENCODER_FAMILIES
from meshwright.app.models.families.family import Family
from meshwright.app.models.families.gemma import GEMMA4_FAMILIES, GEMMA_FAMILIES
from meshwright.app.models.families.glm import GLM_FAMILIES
from meshwright.app.models.families.gpt import GPT_FAMILIES, GPT_KIN_FAMILIES
from meshwright.app.models.families.hunyuan import HUNYUAN_FAMILIES
from meshwright.app.models.families.hybrid import HYBRID_FAMILIES
from meshwright.app.models.families.kimi_linear import KIMI_LINEAR_FAMILIES
from meshwright.app.models.families.lfm import LFM_FAMILIES
from meshwright.app.models.families.linear_attention import LINEAR_ATTENTION_FAMILIES
from meshwright.app.models.families.llama import LLAMA_FAMILIES, LLAMA_KIN_FAMILIES
from meshwright.app.models.families.longcat import LONGCAT_FAMILIES
from meshwright.app.models.families.mimo import MIMO_FAMILIES
from meshwright.app.models.families.minimax import MINIMAX_FAMILIES
from meshwright.app.models.families.mllama import MLLAMA_FAMILIES
from meshwright.app.models.families.moe import MOE_FAMILIES, MOE_KIN_FAMILIES
from meshwright.app.models.families.nemotron import NEMOTRON_FAMILIES, NEMOTRON_NAS_FAMILIES
from meshwright.app.models.families.olmo import OLMO_FAMILIES
from meshwright.app.models.families.phi import PHI_FAMILIES
from meshwright.app.models.families.recurrent_gemma import RECURRENT_GEMMA_FAMILIES
from meshwright.app.models.families.remote_code import REMOTE_CODE_FAMILIES
from meshwright.app.models.families.starcoder import STARCODER_FAMILIES
from meshwright.app.models.families.step import STEP_FAMILIES

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
    BAILING_FAMILIES,
    DBRX_FAMILIES,
    HUNYUAN_FAMILIES,
    KIMI_LINEAR_FAMILIES,
    LONGCAT_FAMILIES,
    MLLAMA_FAMILIES,
    RECURRENT_GEMMA_FAMILIES,
    REMOTE_CODE_FAMILIES,
    ENCODER_FAMILIES,
)

FAMILIES: dict[str, Family] = {family.model_type: family for group in _GROUPS for family in group}
