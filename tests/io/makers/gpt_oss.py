"""gpt-oss: compressed-tensors makes the codes of the experts, transformers loads the model and
says what they are; its own writer of such files is a kernel for GPUs."""
import torch
import transformers
from transformers import Mxfp4Config

from small_models import tensors_of

from . import golden, save_folder

KINDS = {"gpt_oss": ("e2m1",)}
SAME_MODEL = True
TURNED = True


def models(_):
    return ("gpt_oss",)


def make(source, folder, _):
    packages = golden("package_quantizers")
    tensors, names = {}, []
    for name, tensor in tensors_of(source).items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = tensor
            continue
        names.append(name)
        experts, k, rows = tensor.shape
        made = packages.mxfp4(tensor.transpose(1, 2).reshape(-1, k))
        tensors[f"{name}_blocks"] = made["data"].reshape(experts, rows, k // 32, 16)
        tensors[f"{name}_scales"] = made["scale"].reshape(experts, rows, k // 32)
    save_folder(source, folder, tensors, Mxfp4Config().to_dict())
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    found = model.state_dict()
    return {name: found[name] for name in names}
