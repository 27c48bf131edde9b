"""As much of torch as qk looks at, over numpy: for the checks where PyTorch is not installed."""
import contextlib
import types

from common import np


class Tensor:
    __torch_dispatch__ = None
    requires_grad = is_meta = is_cuda = is_nested = False
    is_cpu, layout = True, "torch.strided"

    def __init__(self, values, **facts):
        self.values = np.asarray(values, np.float32)
        self.dtype, self.device = "torch.float32", "cpu"
        for name, value in facts.items():
            setattr(self, name, value)

    shape = property(lambda self: self.values.shape)

    def data_ptr(self):
        return self.values.ctypes.data

    def numel(self):
        return self.values.size

    def is_contiguous(self):
        return True

    def is_neg(self):
        return False

    def detach(self):
        return type(self)(self.values)

    def reshape(self, *shape):
        self.values = self.values.reshape(*shape)
        return self

    def new_empty(self, shape):
        return Tensor(np.full(shape, np.nan, "f"))


class OnAnotherDevice(Tensor):
    is_cpu, device = False, "meta"

    def __init__(self, values):
        super().__init__(values)
        self.device = "meta"


class WithItsOwnDispatch(Tensor):
    @staticmethod
    def __torch_dispatch__():
        pass


class WithoutMemory(Tensor):
    def data_ptr(self):
        raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")


class FakeTensorMode:
    pass


class Counter:
    """A mode that only watches."""


class State:
    """What torch keeps for the thread; a test changes it by `with state(grad=False):`."""

    def __init__(self):
        self.grad, self.tracing, self.modes, self.level, self.tangent = True, False, [], -1, None

    @contextlib.contextmanager
    def __call__(self, **facts):
        before = dict(vars(self))
        vars(self).update(facts)
        try:
            yield
        finally:
            vars(self).update(before)


def module():
    """torch, and its state."""
    state = State()
    torch = types.ModuleType("torch")
    torch.Tensor, torch.strided = Tensor, Tensor.layout
    torch.is_grad_enabled = lambda: state.grad
    torch.jit = types.SimpleNamespace(is_tracing=lambda: state.tracing)
    torch._C = types.SimpleNamespace(_len_torch_dispatch_stack=lambda: len(state.modes),
                                     _get_dispatch_stack_at=lambda i: state.modes[i])

    class ForwardAd:
        _current_level = property(lambda self: state.level)

        @staticmethod
        def unpack_dual(tensor):
            return types.SimpleNamespace(tangent=state.tangent)

    torch.autograd = types.SimpleNamespace(forward_ad=ForwardAd())
    return torch, state
