"""QLoRA: a small Llama in NF4 learns a text of numbers by peft's adapters. qlora.py [STEPS]"""
import sys

try:
    import peft
    import torch
    import transformers
    import qk.torch
except ImportError as error:
    sys.exit(f"{error}: pip install peft transformers torch ./ffi/python, in a clone of qk")


def main():
    if len(sys.argv) > 2 or not "".join(sys.argv[1:]).strip().isdigit() and len(sys.argv) == 2:
        sys.exit(f"usage: {sys.argv[0]} [STEPS]")
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=64, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2))
    print(qk.torch.replace_linear(model, "nf4", nested=True))
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    model.print_trainable_parameters()
    tokens = (torch.arange(4 * 32).reshape(4, 32) * 5) % 64
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    for step in range(int((sys.argv + [10])[1])):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
