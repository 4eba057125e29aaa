"""Run by an interpreter that has SGLang: its own parser of server arguments, and the record made of them.

Reads a list of argument lists. The package's own start loads kernels that only a GPU has, so its parser is read without it.
"""

import argparse
import contextlib
import importlib
import importlib.util
import io
import json
import sys
import types

spec = importlib.util.find_spec("sglang")
package = types.ModuleType("sglang")
package.__path__ = list(spec.submodule_search_locations)
package.__spec__ = spec
sys.modules["sglang"] = package

ServerArgs = importlib.import_module("sglang.srt.server_args").ServerArgs

parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
answers = []
for words in json.loads(sys.argv[1]):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            args = ServerArgs.from_cli_args(parser.parse_args(words))
    except (Exception, SystemExit) as error:
        answers.append({"error": f"{type(error).__name__}: {error} {said.getvalue()[-300:]}"})
        continue
    names = (
        "tp_size pp_size dp_size attn_dp_size attn_cp_size ep_size cp_strategy enable_prefill_cp enable_mixed_chunk "
        "max_running_requests chunked_prefill_size max_prefill_tokens context_length mem_fraction_static quantization "
        "kv_cache_dtype nnodes node_rank dist_init_addr speculative_algorithm speculative_num_steps "
        "speculative_num_draft_tokens disaggregation_mode disaggregation_transfer_backend enable_eplb ep_num_redundant_experts"
    )
    answers.append({name: getattr(args, name) for name in names.split()})
print("ANSWER" + json.dumps(answers))
