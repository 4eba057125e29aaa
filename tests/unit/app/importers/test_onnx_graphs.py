"""Models in ONNX: the same graph as torch.export's, node by node the calls that the planner knows, and refusals."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.app.base.errors import DocumentError
from meshwright.app.models.traced.layers import in_layers
from meshwright.app.models.traced.model import BLOCK, read_traced_graph
from meshwright.app.requests.files import FilesBeside
from meshwright.app.requests.resolve import resolve_request
from meshwright.costmodels.errors import InvalidInputError, ModelError
from meshwright.costmodels.model.operators import AttentionMask, OperatorKind
from meshwright.solver.problem.graph import ModelGraph
from tests.support.requests_given import training
from tests.unit.app.importers.traced_models import BATCH, CONFIGS, SEQ_LEN, TRACES

onnx = pytest.importorskip("onnx", reason="needs onnx (pip install onnx)")
np = pytest.importorskip("numpy")

from meshwright.app.models.traced import onnx_export  # noqa: E402
from meshwright.app.models.traced.onnx_export import parsed_model, traced_document  # noqa: E402

HEADER = '<ir_version: 10, opset_import: ["" : 20]>'

DECODER = f"""{HEADER}
g (int64[batch, seq] ids) => (float[batch, seq, 32] logits)
<float[32, 16] wte, float[16, 48] wqkv, float[48] bqkv, float[16, 16] wo, float[16] gain, bool[1, 1, 4, 4] hides,
 int64 zero = {{0}}, int64 one = {{1}}, int64[1] four = {{4}}, int64[1] rest = {{-1}}, int64[1] end = {{2}},
 int64[1] start = {{0}}, float half = {{0.5}}, float least = {{-10000}}>
{{
    x = Gather(wte, ids)
    n = Mul(x, gain)
    product = MatMul(n, wqkv)
    qkv = Add(bqkv, product)
    shape = Shape(qkv)
    leading = Slice(shape, start, end)
    cut = Concat<axis = 0>(leading, four, rest)
    q, k, v = Split<axis = 2, num_outputs = 3>(qkv)
    q4 = Reshape(q, cut)
    k4 = Reshape(k, cut)
    v4 = Reshape(v, cut)
    qt = Transpose<perm = [0, 2, 1, 3]>(q4)
    kt = Transpose<perm = [0, 2, 3, 1]>(k4)
    vt = Transpose<perm = [0, 2, 1, 3]>(v4)
    qs = Mul(qt, half)
    scores = MatMul(qs, kt)
    scaled = Mul(scores, half)
    masked = Where(hides, least, scaled)
    p = Softmax<axis = -1>(masked)
    o = MatMul(p, vt)
    ot = Transpose<perm = [0, 2, 1, 3]>(o)
    joined = Shape(x)
    flat = Reshape(ot, joined)
    y = MatMul(flat, wo)
    z = Add(x, y)
    back = Transpose(wte)
    logits = MatMul(z, back)
}}
"""
MODULES = {"product": "/model/layers.0/attn/qkv_proj/MatMul", "o": "/model/layers.0/attn/MatMul_1"}


def model(text: str, **stored: Any) -> Any:
    """A model from its text; the initializers that it declares have these values, or random ones."""
    made = onnx.parser.parse_model(text)
    for node in made.graph.node:
        node.name = MODULES.get(node.output[0], "")
    rng = np.random.default_rng(0)
    for declared in made.graph.value_info:
        kind = onnx.helper.tensor_dtype_to_np_dtype(declared.type.tensor_type.elem_type)
        sizes = tuple(dim.dim_value for dim in declared.type.tensor_type.shape.dim)
        values = np.asarray(stored.get(declared.name, rng.normal(size=sizes))).astype(kind)
        made.graph.initializer.append(onnx.numpy_helper.from_array(values, declared.name))
    del made.graph.value_info[:]
    return made


def decoder(hides: Any = None) -> Any:
    hidden = np.triu(np.ones((1, 1, 4, 4)), 1) if hides is None else hides
    return model(DECODER, hides=hidden)


def read(document: dict[str, Any]) -> ModelGraph:
    return read_traced_graph(json.loads(json.dumps(document))).graph


def calls(document: dict[str, Any]) -> list[str]:
    return [call["op"].removeprefix("aten.") for call in document["operators"]]


SIZES = {"batch": 2, "seq": 4}


def test_a_decoder_is_read_with_the_sizes_of_its_dynamic_axes() -> None:
    document = traced_document(decoder(), name="d", sizes=SIZES)
    graph = read(document)
    kinds = [operator.kind for operator in graph.block(BLOCK).operators if operator.kind is not OperatorKind.ELEMENTWISE]
    product, loss = OperatorKind.MATMUL, OperatorKind.LOSS
    assert kinds == [OperatorKind.EMBEDDING, product, OperatorKind.ATTENTION, product, product, loss]
    # wte is tied to the head; the gain, the projections and the bias follow.
    assert graph.parameters() == 32 * 16 + 16 + 16 * 48 + 48 + 16 * 16
    (attention,) = (each for each in graph.block(BLOCK).operators if each.kind is OperatorKind.ATTENTION)
    assert attention.mask is AttentionMask.CAUSAL
    assert attention.name == "model.layers.0.attn/scaled_dot_product_attention"
    assert "addmm" in calls(document), "a bias is part of its product"
    assert calls(document).count("mul") == 1, "scales are part of an attention, the gain is none"
    assert "model.layers.0.attn.qkv_proj" in [call["module"] for call in document["operators"]]


@pytest.mark.parametrize(
    ("hidden", "mask"),
    [
        (np.triu(np.ones((1, 1, 4, 4)), 1), AttentionMask.CAUSAL),
        (np.zeros((1, 1, 4, 4)), AttentionMask.FULL),
        (np.tril(np.ones((1, 1, 4, 4)), -1), AttentionMask.FULL),
    ],
)
def test_a_stored_mask_is_causal_if_it_hides_later_tokens(hidden: Any, mask: AttentionMask) -> None:
    graph = read(traced_document(decoder(hidden), name="d", sizes=SIZES))
    assert [each.mask for each in graph.block(BLOCK).operators if each.kind is OperatorKind.ATTENTION] == [mask]


def beside(folder: Path, made: Any) -> Any:
    """The model as read from a folder, with its mask and its first weight in a file of external data."""
    for tensor in made.graph.initializer:
        if tensor.name in ("hides", "wte"):
            onnx.external_data_helper.set_external_data(tensor, location="model.data")
    path = folder / "model.onnx"
    onnx.save(made, path)
    return parsed_model(path.read_bytes())


def test_of_external_data_masks_alone_are_read(tmp_path: Path) -> None:
    found = beside(tmp_path, decoder())
    assert traced_document(found, name="d", folder=tmp_path, sizes=SIZES) == traced_document(decoder(), name="d", sizes=SIZES)
    (tmp_path / "model.data").unlink()
    with pytest.raises(ValueError, match="is not beside the model"):
        traced_document(found, name="d", folder=tmp_path, sizes=SIZES)


@pytest.mark.parametrize("location", ["../outside", "/etc/passwd", "", "nothing", "\0"])
def test_external_data_lies_beside_the_model(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    (tmp_path / "outside").write_bytes(bytes(10**5))
    found = beside(folder, decoder())
    (mask,) = (tensor for tensor in found.graph.initializer if tensor.name == "hides")
    mask.external_data[0].value = location
    with pytest.raises(ValueError, match="null" if location == "\0" else "hides .* not beside the model"):
        traced_document(found, name="d", folder=folder, sizes=SIZES)


def of_one(node: str, *, given: str = "float[2, 3, 8] x", stored: str = "", written: str = "y", opset: int = 20) -> list[Any]:
    """The calls of one node, without its module, but for those of a loss."""
    text = f'<ir_version: 10, opset_import: ["" : {opset}]> g ({given}) => (float[a] {written}) <{stored}> {{ {node} }}'
    return [[call["op"].removeprefix("aten."), *call["args"]] for call in traced_document(model(text), name="m")["operators"]]


X, W = {"tensor": "x"}, {"tensor": "w"}


@pytest.mark.parametrize(
    ("node", "more", "expected"),
    [
        ("y = Tanh(x)", {}, [["tanh", X]]),
        ("y = Less(x, x)", {}, [["lt", X, X]]),
        ("y = Softmax(x)", {}, [["softmax", X, -1]]),
        ("y = LogSoftmax<axis = 1>(x)", {}, [["log_softmax", X, 1]]),
        ("y = Transpose<perm = [1, 0, 2]>(x)", {}, [["permute", X, [1, 0, 2]]]),
        ("y = Transpose(x)", {}, [["permute", X, [2, 1, 0]]]),
        ("y = Flatten(x)", {}, [["view", X, [2, 24]]]),
        ("y = Unsqueeze(x, w)", {"stored": "int64[1] w = {0}"}, [["view", X, [1, 2, 3, 8]]]),
        ("y = Expand(x, w)", {"stored": "int64[4] w = {5, 1, 1, 1}"}, [["expand", X, [5, 2, 3, 8]]]),
        ("y = Cast<to = 10>(x)", {}, [["alias", X]]),
        ("y = ReduceMean<keepdims = 0>(x, w)", {"stored": "int64[1] w = {-1}"}, [["mean", X, [-1], False]]),
        ("y = ReduceMean<axes = [-1]>(x)", {"opset": 17}, [["mean", X, [-1], True]]),
        ("y = LayerNormalization(x, w)", {"stored": "float[8] w"}, [["layer_norm", X, [8], W]]),
        ("y = RMSNormalization(x, w)", {"stored": "float[8] w", "opset": 23}, [["rms_norm", X, [8], W]]),
        ("y = Gather<axis = 1>(x, w)", {"stored": "int64 w = {2}"}, [["select", X, 1, 2]]),
        ("y = Gather<axis = 1>(x, w)", {"stored": "int64[2] w = {2, 0}"}, [["index", X, [None, W]]]),
        (
            "y, z = Split<axis = 2>(x, w)",
            {"stored": "int64[2] w = {6, 2}"},
            [["split_with_sizes", X, [6, 2], 2]],
        ),
        ("y = Concat<axis = 1>(x, x)", {}, [["cat", [X, X], 1]]),
        ("y = Clip(x, w)", {"stored": "float w = {0.5}"}, [["clamp", X, 0.5]]),
        (
            "y = Slice(x, s, e, a)",
            {"stored": "int64[2] s = {-2, 2}, int64[2] e = {9223372036854775807, 6}, int64[2] a = {1, 2}"},
            [["slice", X, 1, 1, 3, 1], ["slice", {"tensor": "y:cut 0"}, 2, 2, 6, 1]],
        ),
        ("y = Slice(x, s, e)", {"stored": "int64[1] s = {0}, int64[1] e = {100}"}, [["alias", X]]),
        (
            "y = Gemm<transB = 1>(x, w, b)",
            {"given": "float[2, 8] x", "stored": "float[4, 8] w, float[4] b"},
            [["transpose", W, 0, 1], ["addmm", {"tensor": "b"}, X, {"tensor": "y:right"}]],
        ),
        (
            "y = Conv<pads = [1, 1], strides = [2]>(x, w)",
            {"stored": "float[4, 3, 3] w"},
            [["convolution", X, W, None, [2], [1], [1], False, [0], 1]],
        ),
        (
            "p = MatMul(x, w) q = Add(p, b) y = Mul(p, q)",
            {"stored": "float[8, 4] w, float[4] b"},
            [["matmul", X, W], ["add", {"tensor": "p"}, {"tensor": "b"}], ["mul", {"tensor": "p"}, {"tensor": "q"}]],
        ),
        ("y = GlobalAveragePool(x)", {}, [["mean", X, [2], True]]),
        ("y, i = TopK(x, w)", {"stored": "int64[1] w = {2}"}, [["topk", X, 2, -1]]),
        ("y = Trilu<upper = 0>(x)", {}, [["tril", X]]),
        ("y = Hardmax(x)", {}, [["onnx.Hardmax", X]]),
    ],
)  # fmt: skip
def test_a_node_is_the_calls_that_the_planner_knows(node: str, more: dict[str, Any], expected: list[Any]) -> None:
    found = of_one(node, **more)
    lost = [call for call in found if call[0] == "cross_entropy_loss"]
    assert (found[: len(expected)] if lost else found) == expected


@pytest.mark.parametrize("flat", [False, True])
def test_an_attention_is_one_call_whatever_its_layout(flat: bool) -> None:
    heads = "q_num_heads = 4, kv_num_heads = 2, " if flat else ""
    given = "float[2, 3, 8] x, float[2, 3, 4] k" if flat else "float[2, 4, 3, 2] x, float[2, 2, 3, 2] k"
    found = of_one(f"y = Attention <{heads}is_causal = 1>(x, k, k)", given=given, opset=23)
    (attention,) = (call for call in found if call[0] == "scaled_dot_product_attention")
    assert attention[4:] == [None, 0.0, True]
    assert [call[0] for call in found][-2:] == (["permute", "view"] if flat else ["scaled_dot_product_attention"])[-2:]


def test_scores_that_are_read_elsewhere_stay_products() -> None:
    seen = DECODER.replace("float[batch, seq, 32] logits)", "float[batch, seq, 32] logits, float[batch, 4, seq, seq] p)")
    found = calls(traced_document(model(seen, hides=np.zeros((1, 1, 4, 4))), name="d", sizes=SIZES))
    assert "scaled_dot_product_attention" in found, "their softmax may be seen"
    seen = seen.replace("seq] p)", "seq] scaled)")
    found = calls(traced_document(model(seen, hides=np.zeros((1, 1, 4, 4))), name="d", sizes=SIZES))
    assert "scaled_dot_product_attention" not in found


@pytest.mark.parametrize("node", ["SoftmaxCrossEntropyLoss(x, t)", "NegativeLogLikelihoodLoss(p, t)"])
def test_a_loss_in_the_graph_is_the_loss(node: str) -> None:
    found = of_one(f"p = LogSoftmax<axis = 1>(x) y = {node}", given="float[2, 8] x, int64[2] t")
    assert found == [["cross_entropy_loss", X, {"tensor": "t"}]]


@pytest.mark.parametrize(
    ("node", "stored", "learned"),
    [
        ("y = Mul(x, w)", "float[8] w", ["w"]),
        ("y = Add(x, w)", "float[3, 8] w", ["w"]),
        ("y = Mul(x, w)", "float[3, 8] w", []),
        ("c = Gather(w, i) y = Mul(x, c)", "float[9, 8] w, int64[3] i = {0, 1, 2}", []),
        ("c = Gather(w, i) y = Add(x, c)", "float[9, 8] w, int64[3] i = {0, 1, 2}", ["w"]),
        ("a = Mul(x, w) c = Cos(b) y = Mul(a, c)", "float[8] w, float[8] b", ["w"]),
    ],
)
def test_tables_that_an_activation_is_multiplied_by_are_no_parameters(node: str, stored: str, learned: list[str]) -> None:
    text = f"{HEADER} g (float[2, 3, 8] x) => (float[a] y) <{stored}> {{ {node} }}"
    assert [each["name"] for each in traced_document(model(text), name="m")["parameters"]] == learned


def test_a_table_of_relative_positions_is_a_weight_of_its_attention() -> None:
    biased = DECODER.replace("float half", "float[7, 4] table, int64[4, 4] apart, float half").replace(
        "masked = Where(hides, least, scaled)",
        "found = Gather(table, apart) bias = Transpose<perm = [2, 0, 1]>(found) masked = Add(scaled, bias)",
    )
    graph = read(traced_document(model(biased), name="d", sizes=SIZES))
    (attention,) = (each for each in graph.block(BLOCK).operators if each.kind is OperatorKind.ATTENTION)
    assert [weight.name for weight in attention.weights] == ["table"]


def test_what_no_output_needs_is_left_out() -> None:
    assert of_one("z = Tanh(x) y = Exp(x)") == [["exp", X]]


LOOP = (
    "y = If (c) <then_branch = t () => (float[2, 3, 8] a) { a = Tanh(x) }, "
    "else_branch = e () => (float[2, 3, 8] b) { b = Exp(x) }>"
)


@pytest.mark.parametrize(
    ("node", "more", "said"),
    [
        ("y = Tanh(x)", {"given": "float[2, n] x"}, r"dynamic size n.*--size n=N"),
        ("y = Tanh(x)", {"given": "float[1, 8] x"}, "batch of 1"),
        ("y = Tanh(x)", {"given": "string[2, 8] x"}, "another format"),
        ("y = NonZero(x)", {}, r"NonZero.*depend on values"),
        ("y = Reshape(x, s)", {"given": "float[2, 8] x, int64[2] s"}, r"Reshape.*static shapes"),
        ("y = com.acme.Fused(x)", {}, r"Fused.*nobody knows here"),
        ("y = MatMul(x, x)", {}, "can't have the shapes"),
        ("y = Tanh(z)", {}, "nothing writes before"),
        (LOOP, {"given": "float[2, 3, 8] x, bool c"}, "control flow"),
        ("y = Softmax(x)", {"opset": 11}, "operator set 13"),
    ],
)
def test_what_has_no_static_shapes_says_what_to_do(node: str, more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        of_one(node, **more)


def test_operators_that_nobody_knows_are_named_when_they_are_planned() -> None:
    odd = model(f"{HEADER} g (float[2, 8] x) => (float[2, 4] y) <float[8, 4] w> {{ h = Hardmax(x) y = MatMul(h, w) }}")
    with pytest.raises(ModelError, match=r"onnx\.Hardmax \(1 x"):
        read(traced_document(odd, name="odd"))


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x0a", bytes(range(256))])
def test_files_that_are_no_model_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="no model in ONNX"):
        parsed_model(content)


def test_a_model_has_no_more_nodes_than_the_planner_reads() -> None:
    many = onnx.ModelProto(opset_import=[onnx.helper.make_opsetid("", 20)])
    many.graph.node.extend([onnx.NodeProto()] * 100_001)
    with pytest.raises(ValueError, match="100001 nodes"):
        parsed_model(many.SerializeToString())


BYTES = decoder().SerializeToString()


@settings(max_examples=100, deadline=None)
@given(place=st.integers(0, len(BYTES) - 1), byte=st.integers(0, 255))
def test_no_change_of_a_file_is_worse_than_an_error(place: int, byte: int) -> None:
    changed = BYTES[:place] + bytes([byte]) + BYTES[place + 1 :]
    with contextlib.suppress(ValueError):
        document = traced_document(parsed_model(changed), name="d", sizes=SIZES)
        with contextlib.suppress(InvalidInputError):
            read(document)


def test_the_command_writes_what_a_request_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d.onnx").write_bytes(BYTES)
    arguments = [str(tmp_path / "d.onnx"), str(tmp_path / "d.json.gz"), "--size", "batch=2", "--size", "seq=4"]
    monkeypatch.setattr(sys, "argv", ["onnx_export.py", *arguments])
    runpy.run_path(str(onnx_export.__file__), run_name="__main__")
    written = json.loads(gzip.decompress((tmp_path / "d.json.gz").read_bytes()))
    assert {**written, "name": ""} == {**traced_document(decoder(), name="", sizes=SIZES)}
    monkeypatch.setattr(sys, "argv", ["onnx_export.py", *arguments[:-1], "seq=many"])
    with pytest.raises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as said:
        runpy.run_path(str(onnx_export.__file__), run_name="__main__")
    assert "NAME=N" in said.getvalue()


def request_of(name: str) -> dict[str, Any]:
    return training(model={"graph": name}, workload=training()["workload"] | {"seq_len": 4, "global_batch": 16})


def test_a_request_names_a_model_in_onnx(tmp_path: Path) -> None:
    static = DECODER.replace("int64[batch, seq]", "int64[2, 4]")
    onnx.save(model(static, hides=np.zeros((1, 1, 4, 4))), tmp_path / "d.onnx")
    resolved = resolve_request(request_of("d.onnx"), files=FilesBeside(tmp_path))
    assert resolved.model.parameters() == 32 * 16 + 16 + 16 * 48 + 48 + 16 * 16
    onnx.save(decoder(), tmp_path / "dynamic.onnx")
    with pytest.raises(DocumentError, match="--size batch=N"):
        resolve_request(request_of("dynamic.onnx"), files=FilesBeside(tmp_path))


def test_weights_inside_a_large_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "d.onnx").write_bytes(bytes(9 * 2**20))
    with pytest.raises(DocumentError, match="external data"):
        resolve_request(request_of("d.onnx"), files=FilesBeside(tmp_path))


def test_without_onnx_both_ways_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d.onnx").write_bytes(BYTES)
    monkeypatch.setitem(sys.modules, onnx_export.__name__, None)
    with pytest.raises(DocumentError, match=r"meshwright\[onnx\].*onnx_export\.py"):
        resolve_request(request_of("d.onnx"), files=FilesBeside(tmp_path))


def exported(name: str, path: Path, *, dynamo: bool) -> None:
    """A model of the traces of this folder, by one of PyTorch's two exporters, with a weight of its own everywhere."""
    import torch
    import transformers

    given = {key: value for key, value in CONFIGS[name].items() if key != "model_type"} | {"use_cache": False}
    classes = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
    }
    config_class, model_class = classes[name]
    network = model_class(config_class(**given)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_()

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            mask = None if dynamo else torch.ones_like(input_ids)
            logits: torch.Tensor = self.network(input_ids=input_ids, attention_mask=mask).logits
            return logits

    how = {"dynamo": True, "opset_version": 18} if dynamo else {"dynamo": False, "do_constant_folding": False}
    tokens = torch.zeros(BATCH, SEQ_LEN, dtype=torch.long)
    torch.onnx.export(Logits(), (tokens,), str(path), input_names=["input_ids"], **how)


def as_computed(graph: ModelGraph) -> list[Any]:
    """What operators compute, but for their names and the FLOPs of an element, which a square root more changes."""
    return [
        (
            o.kind,
            o.mask,
            [tensor.dims for tensor in (*o.inputs, *o.outputs)],
            [weight.dims for weight in o.weights],
            len(o.saved),
        )
        for o in graph.block(BLOCK).operators
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow_beyond(1)
@pytest.mark.parametrize(("name", "dynamo"), [("gpt2", False), ("llama", False), ("gpt2", True), ("llama", True)])
def test_onnx_and_torch_export_give_the_same_operators(name: str, dynamo: bool, tmp_path: Path) -> None:
    for package in ("torch", "transformers", *(["onnxscript"] if dynamo else [])):
        pytest.importorskip(package, reason=f"needs {package} (pip install -r tests/requirements-truth.txt)")
    path = tmp_path / "model.onnx"
    exported(name, path, dynamo=dynamo)
    mine = read(traced_document(parsed_model(path.read_bytes()), name=name, folder=tmp_path))
    theirs = read(json.loads(gzip.decompress((TRACES / f"{name}.json.gz").read_bytes())))
    assert as_computed(mine) == as_computed(theirs)
    assert mine.parameters() == theirs.parameters()
    assert [run.repeat for run in in_layers(mine).chain] == [run.repeat for run in in_layers(theirs).chain]
