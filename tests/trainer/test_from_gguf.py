"""A GGUF file, written here by llama.cpp's own package and quantized as SmolLM2's is, becomes a model folder."""

import json

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from pipeline.config import Config
from pipeline.model_folder import check_model_folder
from trainer import from_gguf, tiny
from trainer.cold_start import make_model
from trainer.model import ModelError
from workers.chat import Chat

LAYERS, HIDDEN, HEADS, KEY_HEADS = 2, 64, 4, 2
QUANTIZED = gguf.GGMLQuantizationType.Q4_1
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(scope="module")
def model():
    """A Llama whose weights are already those that quantization leaves."""
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    torch.manual_seed(1)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                packed = gguf.quants.quantize(parameter.numpy(), QUANTIZED)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(packed, QUANTIZED)))
    return model.eval()


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(128)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(512)
    add_tokenizer(writer)
    for name, tensor in model.named_parameters():
        weights = tensor.detach().numpy()
        if "q_proj" in name or "k_proj" in name:  # llama.cpp rotates neighbours, transformers halves
            heads = HEADS if "q_proj" in name else KEY_HEADS
            weights = weights.reshape(heads, 2, -1, HIDDEN).swapaxes(1, 2).reshape(weights.shape)
        if weights.ndim == 2:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(weights, QUANTIZED), raw_dtype=QUANTIZED)
        else:
            writer.add_tensor(gguf_name(name), weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer):
    tokenizer = json.loads(tiny.make_tokenizer(["  3 apples\n\n4 pears"], 512).to_str())
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    vocabulary = tokenizer["model"]["vocab"] | special
    tokens = sorted(vocabulary, key=vocabulary.get)
    tokens += [f"<unused-{i}>" for i in range(len(tokens), 512)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    for token, add in {tiny.TURN_START: writer.add_bos_token_id, tiny.TURN_END: writer.add_eos_token_id}.items():
        add(vocabulary[token])
    writer.add_pad_token_id(vocabulary[tiny.TURN_END])  # as in SmolLM2's file
    writer.add_chat_template(tiny.CHAT_TEMPLATE)


def gguf_name(name):
    if not name.startswith("model.layers."):
        return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]
    _, _, layer, *middle, last = name.split(".")
    return f"blk.{layer}.{NAMES['.'.join(middle)]}.{last}"


@pytest.fixture(scope="module")
def folder(file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "model"
    from_gguf.make(folder, file, "float32")
    return folder


def test_the_folder_computes_what_the_quantized_model_computes(folder, model):
    check_model_folder(folder, 256)
    found = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.arange(40)[None] * 7 % 512
    with torch.no_grad():
        torch.testing.assert_close(found(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)
    assert found.get_input_embeddings().weight is found.get_output_embeddings().weight
    assert not hasattr(found.config, "quantization_config")


def test_the_weights_are_written_in_the_dtype_of_the_run(file, tmp_path):
    from_gguf.make(tmp_path / "model", file, "bfloat16")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").dtype == torch.bfloat16
    assert json.loads((tmp_path / "model" / "config.json").read_text())["dtype"] == "bfloat16"


def test_its_tokenizer_pads_with_no_end_of_a_turn_and_reads_digits_one_by_one(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.eos_token, tokenizer.pad_token) == (tiny.TURN_END, tiny.END)
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a  42")
    assert [piece for piece, _ in pieces] == ["a", "ĠĠ", "4", "2"]
    assert tokenizer.decode(tokenizer.encode("12 + 7 äß")) == "12 + 7 äß"


def test_workers_read_its_chat_template(folder):
    chat = Chat(folder)
    assert chat.end_text == tiny.TURN_END
    assert chat.text(chat.prompt([{"role": "user", "content": "1+1?"}])).endswith("<|im_start|>assistant\n")


def test_the_run_makes_it_in_its_own_folder_and_an_existing_one_is_left_alone(file, tmp_path):
    sections = {"run": {"name": "r", "folder": tmp_path}, "model": {"gguf": str(file)}, "data": {"tasks": {"gcd": {}}}}
    config = Config.model_validate(sections | {"rollout": {"context_length": 256, "max_tokens": 64}})
    make_model(config)
    before = (tmp_path / "r" / "model" / "model.safetensors").stat()
    make_model(config)
    assert (tmp_path / "r" / "model" / "model.safetensors").stat() == before


def test_a_file_that_cannot_be_read_leaves_nothing_behind(file, tmp_path):
    (tmp_path / "cut.gguf").write_bytes(file.read_bytes()[:4000])
    with pytest.raises(ModelError, match=r"cut.gguf cannot be read \(.*; copy it again, or set model.path"):
        from_gguf.make(tmp_path / "model", tmp_path / "cut.gguf", "float32")
    assert [path.name for path in tmp_path.iterdir()] == ["cut.gguf"]
